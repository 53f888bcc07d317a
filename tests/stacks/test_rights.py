"""Permissions of nodes and run controller beyond the demo's: each is listed with evidence that it is needed."""

from __future__ import annotations

from tests.flow.permissions import BEYOND_THE_DEMO, ROLES, Permission

from .conftest import CONFIGS, Assembly, Synthesis


def rights(assembly: Assembly) -> set[Permission]:
    """Return the actions of the roles that tests/flow observes in the demo."""
    found: set[Permission] = set()
    for role, logical_id in ROLES.items():
        (name,) = [each for each in assembly.of_type("TrainingStack", "AWS::IAM::Role") if each.startswith(logical_id)]
        for sid, statement in assembly.statements("TrainingStack", name).items():
            actions = statement["Action"]
            found |= {(role, sid, action) for action in ([actions] if isinstance(actions, str) else actions)}
    return found


def test_each_permission_beyond_the_demo_has_a_reason(synthesis: Synthesis, demo: Assembly) -> None:
    """tests/flow/test_change.py checks the demo's permissions against the calls of a complete run."""
    granted: set[Permission] = set().union(*(rights(synthesis.of(name)) for name in CONFIGS))
    assert sorted(granted - rights(demo)) == sorted(BEYOND_THE_DEMO)
