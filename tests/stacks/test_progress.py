"""Slow commands are never silent."""

from __future__ import annotations

import threading

import pytest

from stacks.commands import progress
from stacks.commands.progress import Progress


def test_a_slow_step_is_repeated_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(silent_seconds=0.001) as report:
        report("reading")
        while "reading ... (0 s)" not in capsys.readouterr().err:
            threading.Event().wait(0.001)
        report("comparing")
    assert "comparing ...\n" in capsys.readouterr().err


def test_nothing_is_printed_after_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), Progress(silent_seconds=0.001) as report:
        report("reading")
        raise KeyError
    capsys.readouterr()
    assert not [each for each in threading.enumerate() if each.name == "progress"]
    assert progress.SILENT_SECONDS < 5.0
