"""The metrics of a run from its events, and their plots."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trainstack.observe.metrics import Series, plotted, series, table
from trainstack.observe.plots import number, plot


def record(at: float, kind: str, step: Any, **values: Any) -> dict[str, Any]:
    record = {"record": kind, "step": step, **values}
    return {"event": "trainer", "unix_seconds": at, "instance_id": "i-1", "record": record}


def use(at: float, node: str, percent: Any) -> dict[str, Any]:
    return {"event": "gpu_use", "unix_seconds": at, "instance_id": node, "gpu_utilization_percent": percent}


def test_a_step_that_was_trained_again_has_its_latest_values() -> None:
    found = series(
        [
            record(30.0, "step", 20, loss=2.0, tokens_per_second=5.0),
            record(50.0, "step", 20, loss=2.5, tokens_per_second=6.0),  # after a resume at step 10
            record(10.0, "step", 10, loss=3.0),
            record(60.0, "validation", 20, loss=2.75),
        ]
    )
    assert [(one.step, one.loss, one.tokens_per_second) for one in found.steps] == [(10, 3.0, None), (20, 2.5, 6.0)]
    assert found.validation == ((20, 2.75),)


def test_gpu_use_is_the_mean_over_the_nodes() -> None:
    found = series([use(61.0, "i-1", 90.0), use(65.0, "i-2", 70.0), use(91.0, "i-1", 100.0), use(130.0, "i-1", 50.0)])
    assert found.gpu_use == ((90.0, 85.0), (150.0, 50.0))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "3", True, None, [1]])
def test_invalid_values_of_user_code_are_left_out(value: Any) -> None:
    found = series([record(1.0, "step", 1, loss=value), record(2.0, "step", value), use(3.0, "i-1", value)])
    assert [(one.step, one.loss) for one in found.steps if one.step == 1] == [(1, None)]
    assert found.gpu_use == () and len(plotted(found)) > 0
    assert series([{"event": "trainer", "record": value, "unix_seconds": value, "instance_id": 3}]) == Series(
        (), (), ()
    )


def test_the_table_has_the_latest_steps() -> None:
    lines = table(series([record(step, "step", step, loss=1 / (step + 1), mfu=0.5) for step in range(50)]))
    assert len(lines) == 21 and len({len(line) for line in lines}) == 1
    assert lines[-1].split() == ["00:00:49", "49", "0.0200", "-", "-", "-", "50.0%"]


def test_plots_show_the_course_of_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    steps = [record(step, "step", step, loss=4 - step / 100, tokens_per_second=1000.0) for step in range(200)]
    text = "\n".join(plotted(series([*steps, use(0.0, "i-1", 50.0), use(600.0, "i-1", 80.0)])))
    assert "loss by step: 2.01" in text and "throughput by step: 1,000 tokens/s" in text
    assert "GPU use by minutes before the latest report: 80%" in text and "-10" in text
    assert "validation" not in text
    assert "GPU use by minutes before the latest report: no values" in "\n".join(plotted(series(steps)))


@pytest.mark.parametrize("is_ascii", [False, True])
def test_a_falling_line_goes_from_the_top_left_to_the_bottom_right(is_ascii: bool) -> None:
    points = [(float(x), -float(x)) for x in range(20)] + [(20.0, math.nan)]
    lines = plot("y", points, unit="m", width=20, height=5, is_ascii=is_ascii)
    assert lines[0] == "y: -19 m" and lines[-1].split() == ["0", "19"]
    area = [line[line.index("|") + 1 :] for line in lines[1:-1]]
    starts = [len(line) - len(line.lstrip()) for line in area]
    ends = [len(line) for line in area]
    assert starts == sorted(set(starts)) and ends == sorted(set(ends)) and starts[0] == 0 and ends[-1] == 20
    assert lines[1].startswith("  0 |") and lines[-2].startswith("-19 |")
    assert all(line.isascii() for line in lines) == is_ascii


@pytest.mark.parametrize(
    ("points", "marks"), [([(3.0, 5.0)], 1), ([(0.0, 5.0), (1.0, 5.0)], 10), ([(0.0, 0.0), (1.0, 9.0)], 10)]
)
def test_few_points_are_connected(points: list[tuple[float, float]], marks: int) -> None:
    lines = plot("y", points, width=10, height=4, is_ascii=True)
    columns = {column for line in lines[1:-1] for column, mark in enumerate(line.partition("|")[2]) if mark == "*"}
    assert len(columns) == marks


def test_a_plot_without_values_has_only_a_title() -> None:
    assert plot("y", [(0.0, math.inf), (math.nan, 1.0)]) == ["y: no values"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1234567.0, "1,234,567"), (12345.6, "12,346"), (0.000123456, "0.00012346")]
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text
