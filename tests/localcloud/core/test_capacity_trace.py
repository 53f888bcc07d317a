"""Replay of recorded capacity: the changes, their times, and rejected files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from localcloud import __main__ as command
from localcloud.compute.capacity_trace import Change, TraceError, changes, play, read_trace
from localcloud.compute.launch.instance_types import InstanceTypes


def write(folder: Path, zone: str, data: list[int], prices: list[float] | None = None) -> Path:
    path = folder / f"{zone}_v100_1" / "7.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"metadata": {"gap_seconds": 60}, "data": data}
    path.write_text(json.dumps(document if prices is None else {**document, "prices": prices}))
    return path


def test_only_changes_are_replayed_in_the_order_of_time(tmp_path: Path) -> None:
    first = read_trace(write(tmp_path, "us-east-1a", [0, 0, 1, 1], [1.0, 1.0, 1.0, 2.0]))
    second = read_trace(write(tmp_path, "us-west-2b", [1, 0, 0, 0]))
    assert changes([first, second]) == [
        Change(0.0, "us-east-1a", True, 1.0),
        Change(0.0, "us-west-2b", False, None),
        Change(60.0, "us-west-2b", True, None),
        Change(120.0, "us-east-1a", False, 1.0),
        Change(180.0, "us-east-1a", False, 2.0),
    ]


def test_speed_divides_the_time_and_late_changes_are_applied_at_once() -> None:
    found = [Change(seconds, "us-east-1a", True, None) for seconds in (0.0, 600.0, 1200.0)]
    now, applied = [100.0], list[float]()

    def apply(change: Change) -> None:
        applied.append(now[0])
        now[0] += 1.5  # each change takes longer than the time to the next one

    def sleep(seconds: float) -> None:
        now[0] += seconds

    play(found, 600.0, apply, lambda: now[0], sleep)
    assert applied == [100.0, 101.5, 103.0]
    now[0], applied[:] = 0.0, []
    play(found, 60.0, apply, lambda: now[0], sleep)
    assert applied == [0.0, 10.0, 20.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a trace"),
        ("[]", "not a trace"),
        ('{"metadata": {"gap_seconds": 0}, "data": [0]}', "must be above 0"),
        ('{"metadata": {"gap_seconds": 60}, "data": [3]}', "list of 0"),
        ('{"metadata": {"gap_seconds": 60}, "data": [0], "prices": [1, 2]}', "prices must be a list of 1"),
    ],
)
def test_invalid_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "us-east-1a.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_trace_without_a_zone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "7.json"
    path.write_text("{}")
    with pytest.raises(TraceError, match="named after a zone"):
        read_trace(path)


def test_command_posts_each_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[dict[str, Any]] = []
    monkeypatch.setattr(command, "_running", lambda state: None)
    monkeypatch.setattr(command, "_request", lambda cloud, path, body: posted.append({"path": path, **body}))
    trace = write(tmp_path, "us-east-1a", [0, 1], [1.0, 1.0])
    options = ["--trace", str(trace), "--types", "g5.xlarge,g6.xlarge", "--speed", "60000", "--notice-seconds", "5"]
    answer = CliRunner().invoke(command.app, ["capacity", *options])
    assert answer.exit_code == 0, answer.output
    assert [(one["path"], one["is_available"], one["usd_per_hour"]) for one in posted] == [
        ("compute/pool", True, 1.0),
        ("compute/pool", False, 1.0),
    ]
    assert posted[0]["instance_types"] == ["g5.xlarge", "g6.xlarge"]
    assert posted[0]["notice_seconds"] == 5.0


def test_prices_have_a_history() -> None:
    types = InstanceTypes()
    first = types.spot_usd_per_hour("m5.large", "us-east-1a")
    types.set_spot_price("m5.large", "us-east-1a", 0.5, 100.0)
    types.set_spot_price("m5.large", "us-east-1a", 0.7, 200.0)
    assert types.spot_usd_per_hour("m5.large", "us-east-1a") == 0.7
    assert types.spot_usd_per_hour("m5.large", "us-east-1b") != 0.7
    assert types.spot_prices("m5.large", "us-east-1a", 50.0, 150.0) == [(50.0, first), (100.0, 0.5)]
    assert types.spot_prices("m5.large", "us-east-1a", 100.0, 300.0) == [(100.0, 0.5), (200.0, 0.7)]
