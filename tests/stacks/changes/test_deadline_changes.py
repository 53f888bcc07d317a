"""Changes to a run's deadline: which ones need approval, and the expected cost in the review."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stacks.capacity.simulation.spread import Spread
from stacks.changes.approvals.rules import Change
from stacks.changes.approvals.spending import later
from stacks.changes.approvals.tables_nodes import NODES
from stacks.changes.report import sections
from stacks.changes.review import review
from stacks.changes.templates.template_set import read_cloud_assembly
from tests.stacks.conftest import Synthesis


def change(before: Any, after: Any) -> Change:
    existing = SimpleNamespace(before={}, after={})
    return Change(cast(Any, existing), (), before, after, cast(Any, None))


@pytest.mark.parametrize(
    ("before", "after", "needs_approval"),
    [
        ("60.0", "90.0", False),
        ("60.0", "60.0", False),
        ("60.0", "50.0", True),  # On-Demand nodes may be bought
        ("60.0", "121.0", True),
        ("", "60.0", True),  # a new deadline buys On-Demand nodes
        ("60.0", "", True),
    ],
)
def test_only_a_moderately_later_deadline_needs_no_approval(before: str, after: str, needs_approval: bool) -> None:
    assert (later(change(before, after)) is not None) is needs_approval


def test_the_response_to_a_missed_deadline_always_needs_approval() -> None:
    rules = NODES["AWS::Lambda::Function"].properties
    assert "Environment/Variables/DEADLINE_HOURS" in rules
    assert "Environment/Variables/ON_DEADLINE_MISS" not in rules


def test_review_states_the_expected_cost_with_interruptions(synthesis: Synthesis) -> None:
    templates = read_cloud_assembly(synthesis.of("minimal").directory)
    spread = Spread(12.0, 10.0, 12.0, 15.0, 20.0)
    found = review({}, templates, hours=(None, 40.0), expected_usd=(None, spread))
    (costs,) = [each for each in sections(found) if each.title == "Costs"]
    (line,) = [each.text for each in costs.lines if "expected" in each.text]
    assert line.startswith("planned run, expected with interruptions: 12.00 USD (10% to 90% of runs: 10.00 to 15.00)")
