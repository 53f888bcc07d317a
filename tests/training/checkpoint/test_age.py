"""The age of the newest durable checkpoint: the trainer records it, and warns if it is too high."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.test_recovery import loop_of, train_to
from training.loop.saves import OLD_INTERVALS

WARNING = "the newest durable checkpoint is"
INTERVAL = 10


def test_late_saves_are_reported_once_until_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with loop_of(tmp_path, checkpoint={"interval_steps": INTERVAL, "interval_minutes": None}) as loop:
        saves = loop.saves
        with monkeypatch.context() as patch:
            patch.setattr(saves, "begin_due", lambda agreed: None)  # as if an earlier save did not finish
            train_to(loop, OLD_INTERVALS * INTERVAL - 1)
            assert saves.age().intervals == pytest.approx(OLD_INTERVALS - 0.1)
            assert WARNING not in caplog.text
            train_to(loop, OLD_INTERVALS * INTERVAL + 5)
            assert caplog.text.count(WARNING) == 1
            assert "no save is in flight; a failure without notice would lose that work" in caplog.text
        train_to(loop, loop.run.state.step + 4)
        assert saves.age().intervals < OLD_INTERVALS
        assert caplog.text.count(WARNING) == 1
        monkeypatch.setattr(saves, "begin_due", lambda agreed: None)
        train_to(loop, loop.run.state.step + OLD_INTERVALS * INTERVAL + 1)
        assert caplog.text.count(WARNING) == 2
