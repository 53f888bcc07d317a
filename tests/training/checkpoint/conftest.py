"""Fixtures: small tensors with the chunk layout of large ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def small_chunks() -> Iterator[None]:
    """Give tensors of at least 8 KiB their own chunks, so that states of some kilobytes have chunks of all kinds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.checkpoint.layout.SMALL_TENSOR_BYTES", 8 * 1024)
        yield
