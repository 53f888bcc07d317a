"""The report's timeline: for each instance a row of bars, positioned in percent of the time since the first launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from trainstack.report.charts import origin_of
from trainstack.report.text import clock, duration, duration_ticks, short_id, tick

Record = Mapping[str, Any]
BAD_MARKS = ("boot_failed", "gang_incomplete", "clock_jumped")
LEGEND = (
    '<p class="legend"><span><i class="life"></i>instance</span><span><i class="boot-0"></i>boot steps</span>'
    '<span><i class="generation-1"></i>training, one bar per generation</span>'
    '<span><i class="triangle"></i>interruption by AWS</span></p>'
)


def timeline_bars(report: Record) -> str:
    """Return the timeline with its legend. Every bar has a title, which browsers show and screen readers read."""
    rows = report["timeline"]
    if not rows:
        return '<p class="empty">No instances were launched.</p>'
    origin = origin_of(report)
    span = max(max(row["ended"] for row in rows) - origin, 1.0)
    ticks = "".join(
        f'<span style="left:{value / span * 100:.2f}%">{tick(value)}</span>' for value in duration_ticks(span)
    )
    body = "".join(_row(row, origin, span) for row in rows)
    return f'{LEGEND}<div class="timeline">{body}<div class="who"></div><div class="ticks">{ticks}</div></div>'


def _row(row: Record, origin: float, span: float) -> str:
    where = " \u00b7 ".join(str(row[name]) for name in ("type", "market", "zone") if row[name])
    name = f"<b>{escape(short_id(row['id']))}</b><small>{escape(where)}</small>"
    life = f"{row['id']}: {duration(row['ended'] - row['launched'])} from {clock(row['launched'])}"
    life += f", {row['reason']}" if row["reason"] else ""
    bars = [_bar("life", row["launched"] - origin, row["ended"] - origin, span, life)]
    for number, (each, lane, num_lanes) in enumerate(_lanes([s for s in row["spans"] if s["kind"] == "boot_step"])):
        title = f"boot: {each['name']}, {duration(each['ended'] - each['started'])} ({each['outcome']})"
        style = f"boot-{number % 2}" if each["outcome"] != "failed" else "failed"
        place = f";top:{lane / num_lanes * 100:.1f}%;height:{100 / num_lanes:.1f}%"
        bars.append(_bar(style, each["started"] - origin, each["ended"] - origin, span, title, place))
    for each in row["spans"]:
        if each["kind"] == "generation":
            title = f"{each['name']}, rank {each['rank']} of {each['world_size']}: "
            title += f"{duration(each['ended'] - each['started'])}, {each['outcome'] or 'aborted'}"
            style = f"generation-{(each['generation'] or 0) % 2}"
            label = f"{each['name']} \u00b7 rank {each['rank']}"
            bars.append(_bar(style, each["started"] - origin, each["ended"] - origin, span, title, label=label))
    marks = [_mark(mark, (mark["unix_seconds"] - origin) / span * 100) for mark in row["marks"]]
    return f'<div class="who">{name}</div><div class="track">{"".join(bars)}{"".join(marks)}</div>'


def _bar(style: str, start: float, end: float, span: float, title: str, place: str = "", label: str = "") -> str:
    left, width = start / span * 100, max(0.15, (end - start) / span * 100)
    return (
        f'<div class="bar {style}" style="left:{left:.2f}%;width:{width:.2f}%{place}" title="{escape(title)}">'
        f"{escape(label)}</div>"
    )


def _mark(mark: Record, left: float) -> str:
    kind = mark["kind"]
    style = kind.replace("_", "-") if kind not in BAD_MARKS else "bad"
    title = escape(f"{clock(mark['unix_seconds'])}: {mark['text']}")
    return f'<i class="mark {style}" style="left:{min(max(left, 0.0), 100.0):.2f}%" title="{title}"></i>'


def _lanes(spans: Sequence[Record]) -> list[tuple[Record, int, int]]:
    """Put overlapping spans into separate lanes; return (span, lane, number of lanes) for each span."""
    ends: list[float] = []
    placed = []
    for span in sorted(spans, key=lambda one: (one["started"], one["ended"])):
        lane = next((number for number, end in enumerate(ends) if end <= span["started"] + 1e-3), len(ends))
        ends[lane : lane + 1] = [span["ended"]]
        placed.append((span, lane))
    return [(span, lane, len(ends)) for span, lane in placed]
