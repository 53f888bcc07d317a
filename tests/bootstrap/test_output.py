"""The trainers' output, followed while it grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from bootstrap.supervise.trainers.output import BURST_BYTES, BYTES_PER_SECOND, Output, OutputReader


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "trainer.log"


def append(log: Path, text: bytes) -> None:
    with log.open("ab") as stream:
        stream.write(text)


def test_complete_lines_are_returned_once(log: Path) -> None:
    reader = OutputReader(log)
    assert reader.read(0.0) is None
    append(log, b"one\ntw")
    assert reader.read(0.5) is None, "within the interval"
    assert reader.read(1.0) == Output("one\n", 0)
    append(log, b"o\n50 %\r75")
    assert reader.read(2.0) == Output("two\n50 %\r", 0)
    assert reader.read(3.0) is None
    assert reader.read(3.1, is_last=True) == Output("75", 0)
    assert reader.read(9.0, is_last=True) is None


def test_the_newest_output_is_kept_when_the_limit_is_exceeded(log: Path) -> None:
    reader = OutputReader(log)
    append(log, b"x" * 99 + b"\n")
    assert reader.read(0.0) == Output("x" * 99 + "\n", 0)
    append(log, (b"y" * 99 + b"\n") * 1000 + b"Traceback\n")
    found = reader.read(1.0)
    assert found is not None and found.text.endswith("Traceback\n")
    assert len(found.text) == BURST_BYTES, "the burst, refilled within the second"
    assert found.dropped_bytes + len(found.text) == 100_010
    append(log, b"z\n" * BURST_BYTES)
    found = reader.read(3.0)
    assert found is not None and len(found.text) == 2 * BYTES_PER_SECOND


def test_a_quiet_log_accumulates_at_most_the_burst(log: Path) -> None:
    reader = OutputReader(log)
    append(log, b"a\n")
    reader.read(0.0)
    append(log, b"b\n" * BURST_BYTES)
    found = reader.read(1e6)
    assert found is not None and len(found.text) == BURST_BYTES and found.dropped_bytes == BURST_BYTES


def test_bytes_that_are_not_text_are_replaced(log: Path) -> None:
    append(log, b"\xff\n")
    assert OutputReader(log).read(0.0) == Output("�\n", 0)
