"""This process's run, without signal handlers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from training import script
from training.script import ThisRun


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThisRun]:
    """The run that `this_run()` returns. Setting `interruption.wants_stop` requests a stop."""
    interruption = SimpleNamespace(
        wants_stop=False,
        wants_save=False,
        last_save_seconds=None,
        save_taken=lambda: None,
        reason=lambda: "a test requested the stop",
    )
    this = ThisRun(tmp_path, str(tmp_path / "store"), tmp_path, 0, interruption)  # type: ignore[arg-type]
    monkeypatch.setattr(script, "_started", [this])
    yield this
    if dist.is_initialized():
        dist.destroy_process_group()
