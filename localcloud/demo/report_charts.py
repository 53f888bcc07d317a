"""Draws the report's charts as inline SVG. The page's style sheet sets the colors for both themes.

Every mark has a title, which browsers show on hover and screen readers read aloud.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from localcloud.demo.report_format import clock, count, decimal, duration, short_id

WIDTH = 1000
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 64, 132, 30, 44
POINTS_LIMIT = 600
ROW_HEIGHT = 58
LABEL_WIDTH = 190

Record = Mapping[str, Any]
Point = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """A linear map from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel position of a value."""
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


def ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Return about `wanted` round values from `low` to `high`."""
    rough = (high - low or 1.0) / wanted
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def loss_chart(report: Record) -> str:
    """Return a chart of the losses by step that also shows the unigram baseline, interruptions and resumes."""
    train, validation = report["series"]["train"], report["series"]["validation"]
    if not train:
        return _empty("No training steps were recorded.")
    unigram = report["validation_loss_unigram"]
    losses = [point["loss"] for point in [*train, *validation] if point["loss"] is not None]
    losses += [unigram] if unigram is not None else []
    last_step = max(report["steps_total"] or 0, *(point["step"] for point in [*train, *validation]))
    low, high = min(losses), max(losses)
    pad = (high - low or 1.0) * 0.06
    plot = _Plot(Scale(0, last_step, 0, 0), low - pad, high + pad, height=380)
    parts = [plot.frame("step", "loss (nats)", count, lambda value: decimal(value, 1))]
    parts += _loss_events(report, plot)
    label_places = _LabelPlaces()
    if unigram is not None:
        y = plot.y(unigram)
        parts.append(_line(plot.left, y, plot.right, y, "unigram", "unigram baseline: loss from token frequencies"))
        parts.append(plot.end_label(label_places.free(y), f"unigram {unigram:.2f}", "ink-muted"))
    for points in _by_segment(train):
        parts.append(plot.path([(point["step"], point["loss"]) for point in points], "train"))
    parts += [plot.hit(p["step"], p["loss"], f"step {p['step']}: train loss {p['loss']:.3f}") for p in _thin(train)]
    if validation:
        parts.append(plot.path([(point["step"], point["loss"]) for point in validation], "validation"))
        for point in validation:
            title = f"step {point['step']}: validation loss {point['loss']:.3f}"
            parts.append(plot.dot(point["step"], point["loss"], "validation", title))
        parts.append(
            plot.end_label(
                label_places.free(plot.y(validation[-1]["loss"])), f"validation {validation[-1]['loss']:.2f}"
            )
        )
    parts.append(plot.end_label(label_places.free(plot.y(train[-1]["loss"])), f"train {train[-1]['loss']:.2f}"))
    return plot.svg(parts, "Loss by training step")


def _loss_events(report: Record, plot: _Plot) -> list[str]:
    parts = []
    for number, entry in enumerate(report["interruptions"]):
        if entry["step"] is None:
            continue
        notice = entry["notice_seconds"]
        how = "no notice" if notice is None else f"{notice:g} s notice"
        x = plot.x(entry["step"])
        title = f"{entry['instance_id']} was interrupted at step {entry['step']}, {how}"
        parts.append(_line(x, plot.top, x, plot.bottom, "interruption", title))
        parts.append(_flag(x, plot.top + 16 * (number % 3), f"interruption \u00b7 {how}", plot.right))
    for resume in report["resumes"]:
        step = resume["resumed_from_step"] or 0
        title = f"resumed from step {step}, {resume['steps_lost']} steps lost"
        x, y = plot.x(step), plot.bottom
        parts.append(f'<path class="resume" d="M{x:.1f} {y - 9:.1f}l6 9h-12z"><title>{escape(title)}</title></path>')
    return parts


def throughput_chart(report: Record) -> str:
    """Return a chart of tokens per second over time that marks the gaps in training."""
    train = [point for point in report["series"]["train"] if point["tokens_per_second"] is not None]
    if not train:
        return _empty("No throughput was recorded.")
    origin = _origin(report)
    last = max(point["unix_seconds"] for point in train) - origin
    high = max(point["tokens_per_second"] for point in train) * 1.12
    plot = _Plot(Scale(0, max(last, 1.0), 0, 0), 0.0, high, height=260)
    parts = [plot.frame("time since the first launch", "tokens per second", duration, count)]
    segments = _by_segment(train)
    for before, after in zip(segments, segments[1:], strict=False):
        start, end = (point["unix_seconds"] - origin for point in (before[-1], after[0]))
        x0, x1 = plot.x(start), plot.x(end)
        title = f"{duration(end - start)} of downtime"
        parts.append(
            f'<rect class="gap" x="{x0:.1f}" y="{plot.top}" width="{max(1.0, x1 - x0):.1f}" '
            f'height="{plot.bottom - plot.top}"><title>{title}</title></rect>'
        )
        anchor = min(max((x0 + x1) / 2, plot.left + 80), plot.right - 80)
        parts.append(f'<text class="gap-label" x="{anchor:.1f}" y="{plot.top + 16}">{title}</text>')
    for points in segments:
        parts.append(plot.path([(p["unix_seconds"] - origin, p["tokens_per_second"]) for p in points], "train"))
    for point in _thin(train):
        title = f"{clock(point['unix_seconds'])}, step {point['step']}: {count(point['tokens_per_second'])} tokens/s"
        parts.append(plot.hit(point["unix_seconds"] - origin, point["tokens_per_second"], title))
    middle = report["tokens_per_second"]
    if middle is not None:
        parts.append(plot.end_label(plot.y(middle), f"median {count(middle)}"))
    return plot.svg(parts, "Training throughput over time")


def timeline_chart(report: Record) -> str:
    """Return a chart with a row for each instance: its lifetime, boot steps, generations and events."""
    rows = report["timeline"]
    if not rows:
        return _empty("No instances were launched.")
    origin = _origin(report)
    last = max(row["ended"] for row in rows) - origin
    x = Scale(0, max(last, 1.0), LABEL_WIDTH, WIDTH - 20)
    bottom = 26 + ROW_HEIGHT * len(rows)
    parts = []
    for value in ticks(0, max(last, 1.0), 8):
        parts.append(f'<line class="grid" x1="{x(value):.1f}" y1="20" x2="{x(value):.1f}" y2="{bottom}"/>')
        parts.append(f'<text class="tick middle" x="{x(value):.1f}" y="{bottom + 18}">{duration(value)}</text>')
    for number, row in enumerate(rows):
        parts.append(_timeline_row(row, 26 + ROW_HEIGHT * number, x, origin))
    label = "Node timeline: boot steps, training generations and interruptions"
    return (
        f'<svg viewBox="0 0 {WIDTH} {bottom + 28}" role="img" aria-label="{label}"><title>{label}</title>'
        + "".join(parts)
        + "</svg>"
    )


def _timeline_row(row: Record, top: float, x: Scale, origin: float) -> str:
    middle = top + 24
    where = f"{row['type']} \u00b7 {row['market']} \u00b7 {row['zone']}"
    parts = [
        f'<text class="row-name" x="0" y="{middle - 3:.1f}">{escape(short_id(row["id"]))}</text>',
        f'<text class="row-note" x="0" y="{middle + 13:.1f}">{escape(where)}</text>',
    ]
    life = f"{row['id']}: {duration(row['ended'] - row['launched'])} from {clock(row['launched'])}"
    life += f", {row['reason']}" if row["reason"] else ""
    parts.append(_bar(x(row["launched"] - origin), x(row["ended"] - origin), middle - 13, 26, "life", life))
    lanes = _lanes([span for span in row["spans"] if span["kind"] == "boot_step"])
    for number, (span, lane, num_lanes) in enumerate(lanes):
        title = f"boot: {span['name']}, {duration(span['ended'] - span['started'])} ({span['outcome']})"
        height = 26 / num_lanes
        parts.append(
            _bar(
                x(span["started"] - origin),
                x(span["ended"] - origin),
                middle - 13 + lane * height,
                height,
                f"boot boot-{number % 2}" if span["outcome"] != "failed" else "boot failed",
                title,
            )
        )
    for span in row["spans"]:
        if span["kind"] != "generation":
            continue
        title = f"{span['name']}, rank {span['rank']} of {span['world_size']}: "
        title += f"{duration(span['ended'] - span['started'])}, {span['outcome'] or 'aborted'}"
        x0, x1 = x(span["started"] - origin), x(span["ended"] - origin)
        parts.append(_bar(x0, x1, middle - 13, 26, f"generation generation-{(span['generation'] or 0) % 2}", title))
        if x1 - x0 > 92:
            text = f"{span['name']} \u00b7 rank {span['rank']}"
            text = text if x1 - x0 > 150 else f"gen {span['generation']}"
            parts.append(f'<text class="bar-label" x="{(x0 + x1) / 2:.1f}" y="{middle + 4:.1f}">{escape(text)}</text>')
    parts += [_timeline_mark(mark, x(mark["unix_seconds"] - origin), middle) for mark in row["marks"]]
    return "<g>" + "".join(parts) + "</g>"


def _timeline_mark(mark: Record, x: float, middle: float) -> str:
    title = f"<title>{clock(mark['unix_seconds'])}: {escape(mark['text'])}</title>"
    if mark["kind"] == "interruption":
        line = f'<path class="interrupted-line" d="M{x:.1f} {middle - 20:.1f}V{middle + 17:.1f}"/>'
        return f'<g>{title}{line}<path class="interrupted" d="M{x - 7:.1f} {middle - 24:.1f}h14l-7 10z"/></g>'
    is_bad = mark["kind"] in ("boot_failed", "gang_incomplete", "clock_jumped")
    style = "bad" if is_bad else mark["kind"].replace("_", "-")
    return f'<circle class="mark {style}" cx="{x:.1f}" cy="{middle + 17:.1f}" r="4">{title}</circle>'


def _lanes(spans: Sequence[Record]) -> list[tuple[Record, int, int]]:
    """Put overlapping spans into separate lanes; return (span, lane, number of lanes) for each span."""
    ends: list[float] = []
    placed = []
    for span in sorted(spans, key=lambda one: (one["started"], one["ended"])):
        lane = next((number for number, end in enumerate(ends) if end <= span["started"] + 1e-3), len(ends))
        ends[lane : lane + 1] = [span["ended"]]
        placed.append((span, lane))
    return [(span, lane, len(ends)) for span, lane in placed]


class _Plot:
    """A plot area with axes that converts values to SVG elements."""

    def __init__(self, x: Scale, low: float, high: float, height: int) -> None:
        self.left, self.right = MARGIN_LEFT, WIDTH - MARGIN_RIGHT
        self.top, self.bottom = MARGIN_TOP, height - MARGIN_BOTTOM
        self._height = height
        self.x = Scale(x.low, x.high, self.left, self.right)
        self.y = Scale(low, high, self.bottom, self.top)

    def frame(self, x_name: str, y_name: str, x_text: Callable[[float], str], y_text: Callable[[float], str]) -> str:
        parts = [f'<text class="axis-name" x="{self.left}" y="14">{y_name}</text>']
        parts.append(f'<text class="axis-name end" x="{self.right}" y="{self._height - 6}">{x_name}</text>')
        for value in ticks(self.y.low, self.y.high, 5):
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{self.left}" y1="{y:.1f}" x2="{self.right}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick end" x="{self.left - 8}" y="{y + 4:.1f}">{y_text(value)}</text>')
        parts.append(f'<line class="axis" x1="{self.left}" y1="{self.bottom}" x2="{self.right}" y2="{self.bottom}"/>')
        for value in ticks(self.x.low, self.x.high, 8):
            parts.append(
                f'<text class="tick middle" x="{self.x(value):.1f}" y="{self.bottom + 18}">{x_text(value)}</text>'
            )
        return "".join(parts)

    def path(self, points: Sequence[Point], style: str) -> str:
        """Return a line through points."""
        places = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points if y is not None)
        return f'<polyline class="series {style}" points="{places}"/>'

    def dot(self, x: float, y: float, style: str, title: str) -> str:
        """Return a visible point."""
        place = f'cx="{self.x(x):.1f}" cy="{self.y(y):.1f}"'
        return f'<circle class="dot {style}" {place} r="4.5"><title>{escape(title)}</title></circle>'

    def hit(self, x: float, y: float, title: str) -> str:
        """Return an invisible, larger area that shows a point's values on hover."""
        place = f'cx="{self.x(x):.1f}" cy="{self.y(y):.1f}"'
        return f'<circle class="hit" {place} r="7"><title>{escape(title)}</title></circle>'

    def end_label(self, y: float, text: str, style: str = "") -> str:
        """Return a label to the right of the plot."""
        return f'<text class="end-label {style}" x="{self.right + 10}" y="{y + 4:.1f}">{escape(text)}</text>'

    def svg(self, parts: Sequence[str], label: str) -> str:
        """Return the complete chart."""
        head = f'<svg viewBox="0 0 {WIDTH} {self._height}" role="img" aria-label="{label}"><title>{label}</title>'
        return head + "".join(parts) + "</svg>"


class _LabelPlaces:
    """Non-overlapping positions for the labels at the right edge."""

    def __init__(self) -> None:
        self._used: list[float] = []

    def free(self, y: float) -> float:
        """Return a free position near `y`."""
        candidates = [y + offset for step in range(12) for offset in (step * 8.0, -step * 8.0)]
        found = next(place for place in candidates if all(abs(place - other) >= 16 for other in self._used))
        self._used.append(found)
        return found


def _origin(report: Record) -> float:
    """Return the start of the time axis: the first launch or, if there is none, the first step."""
    launches = [row["launched"] for row in report["timeline"]]
    return float(min(launches or [point["unix_seconds"] for point in report["series"]["train"]]))


def _by_segment(points: Sequence[Record]) -> list[list[Record]]:
    segments: dict[int, list[Record]] = {}
    for point in points:
        segments.setdefault(point["segment"], []).append(point)
    return list(segments.values())


def _thin(points: Sequence[Record]) -> Sequence[Record]:
    """Return at most POINTS_LIMIT of the points, evenly spaced."""
    return points[:: math.ceil(len(points) / POINTS_LIMIT) or 1]


def _bar(x0: float, x1: float, y: float, height: float, style: str, title: str) -> str:
    width = max(1.5, x1 - x0)
    shape = f'x="{x0:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3"'
    return f'<rect class="bar {style}" {shape}><title>{escape(title)}</title></rect>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str, title: str) -> str:
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="{style}" {place}><title>{escape(title)}</title></line>'


def _flag(x: float, y: float, text: str, right: float) -> str:
    side, anchor = (8, "start") if x < right - 190 else (-8, "end")
    return f'<text class="flag" x="{x + side:.1f}" y="{y + 10:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _empty(text: str) -> str:
    return f'<p class="empty">{escape(text)}</p>'
