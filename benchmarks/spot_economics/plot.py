"""Draws the costs of the policies, relative to the least cost in hindsight, as an SVG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

COLORS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#9c6b4e")
WIDTH, LEFT, TOP, ROW, BAR = 860, 110, 60, 18, 13
PIXELS_RIGHT = 70


def bar_chart(groups: Sequence[tuple[str, Mapping[str, float]]], title: str) -> str:
    """Return a chart with one group of bars per entry.

    Args:
        groups: The name of each group with the value of each policy. All groups have the same policies.
        title: Title of the chart.
    """
    names = list(groups[0][1])
    highest = max(value for _, values in groups for value in values.values())
    scale = (WIDTH - LEFT - PIXELS_RIGHT) / highest
    height = TOP + len(groups) * (len(names) * ROW + 16) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="22" font-size="14">{escape(title)}</text>',
    ]
    for index, name in enumerate(names):
        x = 12 + index * 135
        parts.append(f'<rect x="{x}" y="34" width="10" height="10" fill="{COLORS[index % len(COLORS)]}"/>')
        parts.append(f'<text x="{x + 15}" y="43">{escape(name)}</text>')
    y = TOP
    for label, values in groups:
        parts.append(f'<text x="12" y="{y + BAR}">{escape(label)}</text>')
        for index, name in enumerate(names):
            length = values[name] * scale
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{COLORS[index % len(COLORS)]}">'
                f"<title>{escape(label)}, {escape(name)}: {values[name]:.3f}</title></rect>"
            )
            parts.append(f'<text x="{LEFT + length + 4:.1f}" y="{y + BAR - 2}">{values[name]:.2f}</text>')
            y += ROW
        y += 16
    one = LEFT + scale
    parts.append(
        f'<line x1="{one:.1f}" y1="{TOP - 6}" x2="{one:.1f}" y2="{y - 8}" stroke="#333" stroke-dasharray="3 3"/>'
    )
    parts.append(f'<text x="{one - 30:.1f}" y="{y + 8}">least cost in hindsight</text></svg>')
    return "\n".join(parts) + "\n"
