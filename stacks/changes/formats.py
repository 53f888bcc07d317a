"""Output formats for a review: terminal, Markdown comment and JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from stacks.capacity.simulation.spread import Spread
from stacks.changes.causes import Causes
from stacks.changes.effects.costs import Costs, Range
from stacks.changes.findings import Area
from stacks.changes.report import Line, headline, sections
from stacks.changes.review import Review
from stacks.changes.updates.differences import MISSING
from stacks.changes.updates.resources import ACTIONS, ResourceChange

_SPECIAL = re.compile(r"([\\`*_\[\]|])")
MARKDOWN_BYTES = 60_000
"""The maximum comment length. GitHub limits comments to 65,536 characters, GitLab to a million."""
FOLDED = "Resources of "
MAX_LINES = 40


def print_review(review: Review, console: Console) -> None:
    """Print a review to a terminal."""
    console.print(Text(headline(review), style="bold"), soft_wrap=True)
    for section in sections(review):
        console.print(Text(f"\n{section.title}", style="bold"))
        for line in section.lines:
            text = Text("  " + line.text, style="red" if line.is_important else "")
            if line.cause is not None:
                text.append(f"  [{line.cause}]", style="cyan")
            console.print(text, soft_wrap=True)


def to_markdown(review: Review) -> str:
    """Return a review as one comment with the headline first, resources collapsed, and long lists truncated."""
    max_lines = MAX_LINES
    text = _markdown(review, max_lines)
    while len(text.encode()) > MARKDOWN_BYTES and max_lines > 1:
        max_lines //= 2
        text = _markdown(review, max_lines)
    return text


def _markdown(review: Review, max_lines: int) -> str:
    parts = [f"**{headline(review)}**"]
    for section in sections(review):
        lines = [f"- {_markdown_line(line)}" for line in section.lines[:max_lines]]
        if len(section.lines) > max_lines:
            lines.append(f"- {len(section.lines) - max_lines} more; `python -m stacks diff` prints all lines")
        body = "\n".join(lines)
        if section.title.startswith(FOLDED):
            title = f"{section.title}: {len(section.lines)}"
            parts.append(f"<details><summary>{title}</summary>\n\n{body}\n\n</details>")
        else:
            parts.append(f"#### {section.title}\n\n{body}")
    return "\n\n".join(parts) + "\n"


def _markdown_line(line: Line) -> str:
    # Values from templates can contain Markdown or HTML.
    text = _SPECIAL.sub(r"\\\1", line.text).replace("<", "&lt;")
    text = " ".join(text.split())
    return (f"**{text}**" if line.is_important else text) + ("" if line.cause is None else f" (`{line.cause}`)")


def to_json(review: Review) -> dict[str, Any]:
    """Return a review as JSON values."""
    old, new = review.costs_before, review.costs_after
    return {
        "exit_code": int(review.level),
        "headline": headline(review),
        "edits": None if review.edits is None else [asdict(one) for one in review.edits],
        "blockers": [asdict(one) for one in review.blockers],
        "left_behind": [asdict(one) for one in review.left_behind],
        "nodes": {
            "impact": review.nodes.impact,
            "reason": review.nodes.reason,
            "capacity_risk": review.nodes.risk,
            "replaced_types": list(review.nodes.replaced_types),
            "keys": _keys(review),
        },
        "repeated_steps": [
            {"step": one.step, "members": one.members, "reason": one.reason} for one in review.repeated_steps
        ],
        **{_AREAS[area]: _findings(review, area) for area in _AREAS},
        "resources": [_resource(one, review.causes) for one in review.changes],
        "counts": {action: sum(one.action == action for one in review.changes) for action in ACTIONS},
        "metadata_only": review.metadata_only,
        "outputs_differ": list(review.outputs),
        "costs_usd": {
            "before": _cost(old, review.hours[0], review.expected_usd[0]),
            "after": _cost(new, review.hours[1], review.expected_usd[1]),
            "prices": dict(review.price_dates),
        },
        "quotas_vcpus": {
            "before": [asdict(one) for one in review.quotas_before],
            "after": [asdict(one) for one in review.quotas_after],
        },
        "keys_are_known": review.causes.are_known,
        "notes": list(review.notes),
    }


_AREAS: Mapping[Area, str] = {"data": "data", "iam": "iam", "network": "network", "approval": "approvals"}


def _keys(review: Review) -> list[str]:
    found = [key for where, one in review.nodes.causes for key in review.causes.of(where, one.path if one else ())]
    return list(dict.fromkeys(found))


def _findings(review: Review, area: Area) -> list[dict[str, Any]]:
    return [
        {
            "direction": one.direction,
            "stack": one.stack,
            "logical_id": one.logical_id,
            "path": list(one.path),
            "text": one.text,
            "keys": list(review.causes.of(one.key, one.path)),
        }
        for one in review.of_area(area)
    ]


def _resource(change: ResourceChange, causes: Causes) -> dict[str, Any]:
    return {
        "stack": change.stack,
        "logical_id": change.logical_id,
        "type": change.type,
        "action": change.action,
        "keys": list(causes.of_change(change)),
        "differences": [
            {
                "path": list(one.path),
                "before": None if one.before is MISSING else one.before,
                "after": None if one.after is MISSING else one.after,
                "effect": one.effect,
                "follows": None if one.via is None else str(one.via),
                "source": one.source,
                "keys": list(causes.of(change.key, one.path)),
            }
            for one in change.differences
        ],
    }


def _cost(side: Costs | None, hours: float | None, expected: Spread | None) -> dict[str, Any] | None:
    if side is None:
        return None

    def rounded(amount: Range | None) -> dict[str, float] | None:
        return None if amount is None else {name: round(usd, 4) for name, usd in asdict(amount).items()}

    return {
        "fleet": side.fleet,
        "training_per_hour": rounded(side.training_per_hour),
        "fixed_per_month": round(side.fixed_per_month, 2),
        "fixed": {name: round(usd, 2) for name, usd in side.fixed.items()},
        "training_per_month": rounded(side.per_month),
        "planned_run": rounded(side.per_run(hours)),
        "planned_hours": hours,
        "planned_run_expected": None if expected is None else asdict(expected),
        "unknown": side.unknown,
    }
