"""Draws the steps of an execution as SVG."""

from __future__ import annotations

from html import escape

from trainstack.pipelines.executions import ExecutionStatus, StepStatus

WIDTH, HEIGHT, GAP, MARGIN = 190, 64, 36, 16
COLORS = {
    "pending": "#e5e7eb",
    "running": "#bfdbfe",
    "succeeded": "#bbf7d0",
    "failed": "#fecaca",
    "stopped": "#fde68a",
    "skipped": "#f3f4f6",
}


def svg(status: ExecutionStatus) -> str:
    """Return the steps from left to right, each with its state and the number of its members."""
    count = len(status.steps)
    width = 2 * MARGIN + count * WIDTH + (count - 1) * GAP
    height = 2 * MARGIN + HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f"<title>{escape(status.pipeline)}, execution {escape(status.execution)}: {status.status}</title>",
        '<defs><marker id="arrow" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#374151"/></marker></defs>',
    ]
    for number, step in enumerate(status.steps):
        left = MARGIN + number * (WIDTH + GAP)
        parts += _box(step, left)
        if number + 1 < count:
            middle = MARGIN + HEIGHT // 2
            parts.append(
                f'<line x1="{left + WIDTH}" y1="{middle}" x2="{left + WIDTH + GAP - 2}" y2="{middle}" '
                'stroke="#374151" marker-end="url(#arrow)"/>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(step: StepStatus, left: int) -> list[str]:
    return [
        f'<rect x="{left}" y="{MARGIN}" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{COLORS[step.state]}" '
        'stroke="#374151"/>',
        f'<text x="{left + 12}" y="{MARGIN + 24}" font-weight="bold">{escape(step.name)}</text>',
        f'<text x="{left + 12}" y="{MARGIN + 42}">{step.state}</text>',
        f'<text x="{left + 12}" y="{MARGIN + 57}" font-size="10">{escape(step.counts)}</text>',
    ]
