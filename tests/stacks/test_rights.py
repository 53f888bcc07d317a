"""Every right of nodes and run controller beyond the demo's is in a list, with what shows that it is needed."""

from __future__ import annotations

from tests.flow.rights import BEYOND_THE_DEMO, ROLES, Right

from .conftest import CONFIGS, Assembly, Synthesis


def rights(assembly: Assembly) -> set[Right]:
    """Return every action of every statement of the roles that tests/flow watches in the demo."""
    found: set[Right] = set()
    for role, logical_id in ROLES.items():
        (name,) = [each for each in assembly.of_type("TrainingStack", "AWS::IAM::Role") if each.startswith(logical_id)]
        for sid, statement in assembly.statements("TrainingStack", name).items():
            actions = statement["Action"]
            found |= {(role, sid, action) for action in ([actions] if isinstance(actions, str) else actions)}
    return found


def test_what_deployments_grant_beyond_the_demo_has_a_reason(synthesis: Synthesis, demo: Assembly) -> None:
    """What the demo's own deployment grants is judged by the calls of a whole run: tests/flow/test_change.py."""
    granted: set[Right] = set().union(*(rights(synthesis.of(name)) for name in CONFIGS))
    assert sorted(granted - rights(demo)) == sorted(BEYOND_THE_DEMO)
