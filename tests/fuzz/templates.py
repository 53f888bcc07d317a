"""Dangerous changes to templates, disguised by CloudFormation functions, for the review of changes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

from stacks.changes.formats import to_json, to_markdown
from stacks.changes.review import Level, review
from tests.stacks.changes.test_attacks import ATTACKS, BASE, DOCUMENTS, changed, leaves, stacks

HARMLESS: tuple[dict[str, Any], ...] = (
    {"NetworkStack/FlowGroup/RetentionInDays": 60},
    {"TrainingStack/NodeRole/Tags/1/Value": "b"},
    {"ObservabilityStack/Alarm/Threshold": 2},
)
"""Changes that pass the review, even next to a dangerous one."""
NAME = "Disguise"
TEXTS: tuple[Callable[[Random, str, str], tuple[Any, dict[str, Any]]], ...] = (
    lambda _, stack, text: ({"Ref": NAME}, {f"{stack}/@Parameters/{NAME}": {"Type": "String", "Default": text}}),
    lambda _, stack, text: ({"Fn::FindInMap": [NAME, "a", "b"]}, {f"{stack}/@Mappings/{NAME}": {"a": {"b": text}}}),
    lambda random, _, text: ({"Fn::Join": ["", _halves(random, text)]}, {}),
    lambda _, stack, text: ({"Fn::Sub": ["${Inner}", {"Inner": text}]}, {}),
    lambda random, _, text: ({"Fn::Sub": ["${A}${B}", dict(zip("AB", _halves(random, text), strict=True))]}, {}),
    lambda _, stack, text: ({"Fn::Select": [1, ["x", text]]}, {}),
    lambda _, stack, text: ({"Fn::Select": ["0", {"Fn::Split": ["|", f"{text}|x"]}]}, {}),
)
VALUES: tuple[Callable[[str, Any], tuple[Any, dict[str, Any]]], ...] = (
    lambda stack, value: (
        {"Fn::If": [NAME, value, {"Ref": "AWS::NoValue"}]},
        {f"{stack}/@Conditions/{NAME}": {"Fn::Equals": ["a", "a"]}},
    ),
    lambda stack, value: (
        {"Fn::If": [NAME, {"Ref": "AWS::NoValue"}, value]},
        {
            f"{stack}/@Parameters/{NAME}Chosen": {"Type": "String", "Default": "yes"},
            f"{stack}/@Conditions/{NAME}": {"Fn::Not": [{"Fn::Equals": [{"Ref": f"{NAME}Chosen"}, "yes"]}]},
        },
    ),
)


def disguised_attack(random: Random, content: bytes) -> bytes:
    """Return a dangerous change, usually disguised, next to a harmless change or a second dangerous one."""
    while True:
        changes = copy.deepcopy(ATTACKS[random.choice(sorted(ATTACKS))])
        if random.random() < 0.2:
            changes |= copy.deepcopy(ATTACKS[random.choice(sorted(ATTACKS))])
        elif random.random() < 0.3:
            changes |= random.choice(HARMLESS)
        if random.random() < 0.9:
            changes = _disguised(random, changes)
        try:
            changed(changes)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            continue  # two changes to the same place
        return json.dumps({"dangerous": True, "changes": changes}).encode()


def check_review(content: bytes) -> None:
    """Review a change, and raise an error if the verdict is wrong."""
    case = json.loads(content)
    found = review(stacks(BASE), changed(case["changes"]))
    assert to_markdown(found)
    asks = found.level >= Level.NEEDS_APPROVAL
    assert asks == case["dangerous"], f"{'passes' if case['dangerous'] else 'asks'}: {to_json(found)['headline']}"


VALID = tuple(json.dumps({"dangerous": False, "changes": one}).encode() for one in HARMLESS)


def _disguised(random: Random, changes: dict[str, Any]) -> dict[str, Any]:
    """Replace a new value, or a part of it, with a function that has the same result."""
    candidates = [path for path, value in changes.items() if value is not None and _takes_functions(path)]
    if not candidates:
        return changes
    path = random.choice(sorted(candidates))
    stack, value = path.partition("/")[0], changes[path]
    if isinstance(value, dict) and "Type" in value and path.count("/") == 1:
        parts = [part for part in leaves(value) if part[0] == "Properties" and len(part) > 1]
    else:
        parts = [(), *leaves(value)]
    parts = [part for part in parts if not _is_in_function(part)]
    if not parts:
        return changes
    part = random.choice(parts)
    old = _at(value, part)
    if isinstance(old, str) and random.random() < 0.8:
        new, extra = random.choice(TEXTS)(random, stack, old)
    else:
        new, extra = random.choice(VALUES)(stack, old)
    return {**changes, path: _replaced(value, part, new), **extra}


def _takes_functions(path: str) -> bool:
    return "/" in path and "@" not in path and path not in DOCUMENTS


def _is_in_function(part: tuple[Any, ...]) -> bool:
    return any(isinstance(key, str) and (key == "Ref" or key.startswith("Fn::")) for key in part)


def _halves(random: Random, text: str) -> list[str]:
    place = random.randrange(len(text) + 1)
    return [text[:place], text[place:]]


def _at(value: Any, part: tuple[Any, ...]) -> Any:
    for key in part:
        value = value[key]
    return value


def _replaced(value: Any, part: tuple[Any, ...], new: Any) -> Any:
    if not part:
        return new
    changed_value = copy.copy(value)
    changed_value[part[0]] = _replaced(value[part[0]], part[1:], new)
    return changed_value
