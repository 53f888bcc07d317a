"""Line plots of text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

WIDTH, HEIGHT = 72, 10
"""Default size of a plot's area, in characters."""
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of the dots in a Braille character, by row and column. Source: https://www.unicode.org/charts/PDF/U2800.pdf"""
_BLANK = 0x2800

Points = Sequence[tuple[float, float]]


def plot(
    title: str, points: Points, *, unit: str = "", width: int = WIDTH, height: int = HEIGHT, is_ascii: bool = False
) -> list[str]:
    """Return a plot as lines: the title with the last value, the area, and the range of x.

    Args:
        title: What is plotted.
        points: x and y of each point, in order of x. Points that are not finite are left out.
        unit: Unit of y, for the title.
        width: Width of the area in characters. Each column shows the mean of its points.
        height: Height of the area in characters.
        is_ascii: Whether to print no Braille characters, which have two columns and four rows of dots each.
    """
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not finite:
        return [f"{title}: no values"]
    columns, rows = (width, height) if is_ascii else (2 * width, 4 * height)
    means = _column_means(finite, columns)
    low, high = min(means.values()), max(means.values())
    marks = _marks(means, low, high, rows)
    area = _ascii(marks, width, height) if is_ascii else _braille(marks, width, height)
    top, bottom = number(high), number(low)
    margin = max(len(top), len(bottom))
    labels = [top, *[""] * (height - 2), bottom] if height > 1 else [top]
    first, last = number(finite[0][0]), number(finite[-1][0])
    lines = [f"{label:>{margin}} |{line}".rstrip() for label, line in zip(labels, area, strict=True)]
    head = f"{title}: {number(finite[-1][1])}{unit if unit == '%' else f' {unit}' if unit else ''}"
    return [head, *lines, f"{'':>{margin}}  {first}{last:>{max(1, width - len(first))}}"]


def _column_means(points: Points, columns: int) -> dict[int, float]:
    """Return the mean of y in each column that has points."""
    first, last = points[0][0], points[-1][0]
    scale = (columns - 1) / (last - first) if last > first else 0.0
    found: dict[int, list[float]] = {}
    for x, y in points:
        found.setdefault(round((x - first) * scale), []).append(y)
    return {column: math.fsum(values) / len(values) for column, values in found.items()}


def _marks(means: dict[int, float], low: float, high: float, rows: int) -> set[tuple[int, int]]:
    """Return the marked dots as column and row, from the top left. Neighboring values are connected."""
    scale = (rows - 1) / (high - low) if high > low else 0.0
    marks: set[tuple[int, int]] = set()
    before: tuple[int, int] | None = None
    for column in sorted(means):
        row = round((high - means[column]) * scale)
        marks.add((column, row))
        if before is not None:
            for between in range(before[0] + 1, column + 1):
                share = (between - before[0]) / (column - before[0])
                marks.add((between, round(before[1] + share * (row - before[1]))))
            for between in range(min(before[1], row), max(before[1], row) if column - before[0] == 1 else 0):
                marks.add((column, between))
        before = (column, row)
    return marks


def _ascii(marks: set[tuple[int, int]], width: int, height: int) -> list[str]:
    return ["".join("*" if (column, row) in marks else " " for column in range(width)) for row in range(height)]


def _braille(marks: set[tuple[int, int]], width: int, height: int) -> list[str]:
    cells = [[0] * width for _ in range(height)]
    for column, row in marks:
        cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    return ["".join(chr(_BLANK + cell) if cell else " " for cell in line) for line in cells]


def number(value: float) -> str:
    """Return a number with at most five significant digits."""
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.5g}"
