"""Stores of small tensors that are cut like those of large ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def small_chunks() -> Iterator[None]:
    """Tensors of 8 KiB and more have chunks of their own, so that states of kilobytes have chunks of all kinds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.checkpoint.layout.SMALL_TENSOR_BYTES", 8 * 1024)
        yield
