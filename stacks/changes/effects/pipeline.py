"""Determines which steps of a pipeline the next execution repeats after a deploy.

The key of the object with a step's members is the digest of its content: the configuration, the code and the image of
each member. Data can also change, without a deploy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stacks.changes.templates.template_set import TemplateSet, resources_of_type
from stacks.changes.templates.values import mapping, text_of

Reason = Literal["new", "changed", "after", "removed"]


@dataclass(frozen=True)
class StepVerdict:
    """A step that the next execution may repeat.

    Attributes:
        members: Number of members after the deploy; 0 for a removed step.
        reason: The step is new, the inputs of members have changed, it follows such a step, or it is removed.
    """

    stack: str
    logical_id: str
    step: str
    members: int
    reason: Reason


@dataclass(frozen=True)
class _Step:
    members_key: str
    members: int


def repeated_steps(before: TemplateSet, after: TemplateSet) -> list[StepVerdict]:
    """Return the steps that the next execution may repeat, in order; none if the pipeline is new or removed."""
    old = {logical_id: steps for _, logical_id, steps in _pipelines(before)}
    return [
        verdict
        for stack, logical_id, new in _pipelines(after)
        if logical_id in old
        for verdict in _verdicts(stack, logical_id, old[logical_id], new)
    ]


def _verdicts(stack: str, logical_id: str, old: Mapping[str, _Step], new: Mapping[str, _Step]) -> Iterator[StepVerdict]:
    follows = False
    for name, step in new.items():
        reason: Reason | None = "after" if follows else None
        if name not in old:
            reason = "new"
        elif old[name].members_key != step.members_key:
            reason = "changed"
        if reason is not None:
            follows = True
            yield StepVerdict(stack, logical_id, name, step.members, reason)
    yield from (StepVerdict(stack, logical_id, name, 0, "removed") for name in old if name not in new)


def _pipelines(templates: TemplateSet) -> Iterator[tuple[str, str, Mapping[str, _Step]]]:
    """Yield the stack id, the logical id and the steps of each state machine whose definition can be read."""
    for stack, logical_id, machine in resources_of_type(templates, "AWS::StepFunctions::StateMachine"):
        text = text_of(mapping(machine.get("Properties")).get("DefinitionString"))
        try:
            states = mapping(mapping(json.loads(text)).get("States"))
        except (ValueError, RecursionError):
            continue
        yield stack, logical_id, {name: _step(states, name) for name, state in states.items() if _is_map(state)}


def _is_map(state: Any) -> bool:
    return mapping(state).get("Type") == "Map"


def _step(states: Mapping[str, Any], name: str) -> _Step:
    """Return a step: its Map state reads the members, and the state after it receives their number."""
    state = mapping(states[name])
    reader = mapping(mapping(state.get("ItemReader")).get("Parameters"))
    collect = mapping(mapping(states.get(str(state.get("Next")))).get("Parameters"))
    members = mapping(collect.get("Payload")).get("members")
    return _Step(str(reader.get("Key")), members if isinstance(members, int) else 0)
