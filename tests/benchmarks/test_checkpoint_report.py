"""The report of the checkpoint benchmark: medians, ranges, bounds, and a limit on its duration."""

from __future__ import annotations

import time
from typing import Any

import pytest

from benchmarks.checkpoint.__main__ import _print
from benchmarks.checkpoint.measures import MIN_ROUNDS, Limit

METHODS = ("own", "torch.save", "dcp async thread", "dcp kept stager")


def results() -> dict[str, Any]:
    saved = {"blocked_seconds": [1.0, 1.0, 1.0], "durable_seconds": [2.0, 2.0, 2.0]}
    contended = {**saved, "lost_seconds": [1.0, 1.0, 1.0], "step_ratio": [1.0, 1.0, 1.0]}
    return {
        "machine": {"cores": 2, "share_a_core": True},
        "load_average_at_start": 0.1,
        "state_bytes": 10,
        "peak_extra_bytes": 11,
        "stored": {
            "dense": 0.8,
            "10 of 12 blocks frozen": 0.3,
            "all but the head frozen": 0.2,
            "best equal to last": 0.0,
        },
        "saves": {
            **{name: {**saved, "blocked_seconds": [10.1, 10.2, 10.3]} for name in METHODS},
            "own": {**saved, "blocked_seconds": [0.9, 1.0, 1.1]},
        },
        "same cores": dict.fromkeys(("own", "dcp kept stager"), contended),
        "own core": dict.fromkeys(("own", "dcp kept stager"), contended),
        "restore": {
            name: [1.0] for name in ("own uncompressed", "own compressed", "torch.load", "torch.load(mmap) and copy")
        },
        "small_tensors": {"blocked_seconds": [1.9, 0.5]},
    }


def test_bounds_apply_to_medians_and_ranges_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = results()
    assert _print(found)
    printed = capsys.readouterr().out
    assert "hardware threads of one core: True" in printed and "1.000 (0.900 to 1.100, 3 rounds)" in printed
    assert all(bound["met"] for bound in found["bounds"]) and "NOT MET" not in printed
    assert not any("S3" in bound["name"] for bound in found["bounds"])


def test_a_missed_bound_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    found = results()
    found["same cores"]["own"] = {**found["same cores"]["own"], "lost_seconds": [1.0, 1.3, 1.4]}
    assert not _print(found)
    assert capsys.readouterr().out.count("NOT MET training time lost") == 1


def test_rounds_end_with_the_time_but_never_before_the_smallest_number() -> None:
    assert list(Limit(5, time.monotonic() + 3600).numbers()) == [0, 1, 2, 3, 4, 5]
    assert list(Limit(5, time.monotonic() - 1).numbers()) == list(range(MIN_ROUNDS + 1))
    assert len(Limit(5, time.monotonic() - 1).seconds_of(lambda: None)) == MIN_ROUNDS
