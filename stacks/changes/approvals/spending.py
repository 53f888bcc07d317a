"""Changes that can make a deployment much more expensive."""

from __future__ import annotations

from collections.abc import Iterator

from stacks.changes.approvals.rules import MAX_GROWTH, Change
from stacks.changes.effects.costs import Costs
from stacks.changes.findings import Finding
from stacks.changes.templates.values import number

FREE_GROWTH_USD_PER_MONTH = 100.0
"""Largest increase in fixed costs that never needs approval, even if the costs more than double."""


def spending_findings(before: Costs | None, after: Costs | None) -> list[Finding]:
    """Return the costs that more than double, or that are unknown after a change to the fleet."""
    if before is None or after is None:
        return []
    return [Finding("approval", "needs approval", "TrainingStack", "", (), text) for text in _texts(before, after)]


def _texts(before: Costs, after: Costs) -> Iterator[str]:
    was, becomes = before.training_per_hour, after.training_per_hour
    if after.unknown is not None and before.fleet != after.fleet and before.unknown != after.unknown:
        yield f"fleet: {before.fleet} -> {after.fleet}: {after.unknown}"
    if was is not None and becomes is not None and was.high and becomes.high > MAX_GROWTH * was.high:
        yield (
            f"training can cost {becomes.high:,.2f} USD per hour instead of {was.high:,.2f}, "
            f"more than {MAX_GROWTH:g} times as much"
        )
    growth = after.fixed_per_month - before.fixed_per_month
    if growth > FREE_GROWTH_USD_PER_MONTH and after.fixed_per_month > MAX_GROWTH * before.fixed_per_month:
        yield (
            f"without training, the deployment costs {after.fixed_per_month:,.2f} USD per month instead of "
            f"{before.fixed_per_month:,.2f}, more than {MAX_GROWTH:g} times as much"
        )


def later(change: Change) -> str | None:
    """Accept a deadline that is later, at most by a factor of MAX_GROWTH. An earlier one can buy On-Demand nodes."""
    was, becomes = number(change.before), number(change.after)
    if was is None or becomes is None:
        return "cannot be compared" if not change.is_new else None
    is_later = was <= becomes <= was * MAX_GROWTH
    return None if is_later else f"is earlier, or later by a factor of more than {MAX_GROWTH:g}"
