"""Data of the report's charts, for uPlot: columns of equal length, series, and vertical marks.

uPlot draws lines over one shared column of x values, and connects no points across null.
Source (1.6.32, 2026-11): https://github.com/leeoniya/uPlot/tree/master/docs#data-format
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainstack.report.text import duration

Record = Mapping[str, Any]
Chart = dict[str, Any]

MAX_POINTS = 1500
"""Points per chart. A screen shows fewer; a long run's page stays small."""
MAX_LABELLED_MARKS = 6
"""Vertical marks with labels in one chart. A chart with more marks has none: the labels would cover it."""
UNITS = ((2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""Shortest span, length in seconds and name of the units of time axes."""


def charts_of(report: Record) -> dict[str, Chart]:
    """Return the charts that have data: `loss`, `learning-rate` and `throughput`.

    Keys of a chart: `title`, `x` (name of the axis), `height` in pixels, `columns` (x, then one per series), `series`
    (label, color variable of the page, and optional style), `marks` (x, text, color variable), `has_mark_labels`.
    """
    train = [point for point in report["series"]["train"] if point["step"] is not None]
    found: dict[str, Chart] = {}
    if any(point["loss"] is not None for point in train):
        found["loss"] = _loss(report, train)
    if any(point["learning_rate"] is not None for point in train):
        found["learning-rate"] = _learning_rate(report, train)
    if any(point["tokens_per_second"] is not None for point in train):
        found["throughput"] = _throughput(report, train)
    for chart in found.values():
        chart["has_mark_labels"] = len(chart["marks"]) <= MAX_LABELLED_MARKS
    return found


def _loss(report: Record, train: Sequence[Record]) -> Chart:
    kept, repeated = _kept(train)
    validation = {point["step"]: point["loss"] for point in report["series"]["validation"]}
    shown = _thinned(sorted(kept), kept)
    steps = sorted({*shown, *repeated, *validation})
    shown_set = set(shown)
    series: list[dict[str, Any]] = [{"label": "train", "color": "--train"}]
    columns: list[list[Any]] = [steps, [kept[step] if step in shown_set else None for step in steps]]
    if repeated:
        series.append({"label": "trained again after a resume", "color": "--ink-muted", "dash": True})
        columns.append([repeated.get(step) for step in steps])
    if validation:
        series.append({"label": "validation", "color": "--validation", "points": True})
        columns.append([validation.get(step) for step in steps])
    unigram = report["validation_loss_unigram"]
    if unigram is not None:
        series.append({"label": "unigram baseline", "color": "--ink-muted", "dash": True})
        columns.append([unigram for _ in steps])
    return {
        "title": "Loss by training step",
        "x": "step",
        "height": 340,
        "columns": columns,
        "series": series,
        "marks": _marks(report),
    }


def _learning_rate(report: Record, train: Sequence[Record]) -> Chart:
    rates = {point["step"]: point["learning_rate"] for point in train}
    steps = _thinned(sorted(rates), rates)
    return {
        "title": "Learning rate by training step",
        "x": "step",
        "height": 200,
        "columns": [steps, [rates[step] for step in steps]],
        "series": [{"label": "learning rate", "color": "--train"}],
        "marks": [],
    }


def _throughput(report: Record, train: Sequence[Record]) -> Chart:
    points = [point for point in train if point["tokens_per_second"] is not None]
    origin = origin_of(report)
    span = points[-1]["unix_seconds"] - origin
    length, unit = next((length, unit) for least, length, unit in UNITS if span >= least)
    values = {number: point["tokens_per_second"] for number, point in enumerate(points)}
    starts = {number for number in range(1, len(points)) if points[number]["segment"] != points[number - 1]["segment"]}
    times: list[float] = []
    speeds: list[float | None] = []
    marks = []
    for number in sorted({*_thinned(list(values), values), *starts}):
        time = (points[number]["unix_seconds"] - origin) / length
        if number in starts:
            before = points[number - 1]["unix_seconds"]
            marks.append(
                {
                    "x": time,
                    "text": f"{duration(points[number]['unix_seconds'] - before)} of downtime",
                    "color": "--bad",
                }
            )
            times.append(((before - origin) / length + time) / 2)
            speeds.append(None)
        times.append(time)
        speeds.append(values[number])
    return {
        "title": "Training throughput over time",
        "x": f"{unit} since the first launch",
        "height": 240,
        "columns": [times, speeds],
        "series": [{"label": "tokens/s", "color": "--train"}],
        "marks": marks,
        "from_zero": True,
    }


def origin_of(report: Record) -> float:
    """Return the start of the time axes in Unix seconds: the first launch or, without one, the first step."""
    launches = [row["launched"] for row in report["timeline"]]
    return float(min(launches or [point["unix_seconds"] for point in report["series"]["train"]]))


def _kept(train: Sequence[Record]) -> tuple[dict[int, Any], dict[int, Any]]:
    """Return the losses by step, and the discarded ones of steps that were trained again."""
    kept: dict[int, Any] = {}
    repeated: dict[int, Any] = {}
    for point in train:
        if point["step"] in kept:
            repeated[point["step"]] = kept[point["step"]]
        kept[point["step"]] = point["loss"]
    return kept, repeated


def _marks(report: Record) -> list[dict[str, Any]]:
    marks = []
    for entry in report["interruptions"]:
        if entry["step"] is not None:
            notice = entry["notice_seconds"]
            how = "no notice" if notice is None else f"{notice:g} s notice"
            marks.append({"x": entry["step"], "text": f"interruption, {how}", "color": "--bad"})
    for resume in report["resumes"]:
        step = resume["resumed_from_step"] or 0
        marks.append({"x": step, "text": f"resume from step {step}", "color": "--good"})
    return marks


def _thinned(keys: Sequence[int], values: Mapping[int, float | None]) -> list[int]:
    """Return at most MAX_POINTS sorted keys: the least and the greatest value of each of equal parts."""
    if len(keys) <= MAX_POINTS:
        return list(keys)
    width = math.ceil(len(keys) / (MAX_POINTS // 2))
    kept = {keys[0], keys[-1]}
    for first in range(0, len(keys), width):
        part = [key for key in keys[first : first + width] if values[key] is not None]
        if part:
            kept |= {min(part, key=lambda key: values[key] or 0.0), max(part, key=lambda key: values[key] or 0.0)}
    return sorted(kept)
