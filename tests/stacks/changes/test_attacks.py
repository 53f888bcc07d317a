"""Dangerous changes to a small deployment, each of which needs approval. The changes are in attacks/*.yaml."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.changes.causes import Edit
from stacks.changes.formats import to_json, to_markdown
from stacks.changes.review import Level, Review, review
from stacks.changes.templates.template_set import StackTemplate, TemplateSet

FOLDER = Path(__file__).parent / "attacks"
BASE: dict[str, Any] = yaml.safe_load((FOLDER / "base.yaml").read_text())
ATTACKS: dict[str, dict[str, Any]] = {
    f"{path.stem}/{name}": changes
    for path in sorted(FOLDER.glob("*.yaml"))
    if path.stem != "base"
    for name, changes in yaml.safe_load(path.read_text()).items()
}
MARK = "@reference@"


def stacks(templates: Mapping[str, Any], *, is_protected: bool = True) -> dict[str, StackTemplate]:
    return {
        name: StackTemplate(name, name, template, "aws://111122223333/us-east-1", is_protected)
        for name, template in templates.items()
    }


def changed(changes: Mapping[str, Any]) -> TemplateSet:
    """Return the base with the changes applied."""
    touched = {path.partition("/")[0] if "/" in path else "TrainingStack" for path in changes}
    templates = {name: copy.deepcopy(one) if name in touched else one for name, one in BASE.items()}
    for path, value in changes.items():
        if path in DOCUMENTS:
            DOCUMENTS[path](templates["TrainingStack"]["Resources"], value)
        elif path != "protection":
            put(templates, place(path), value)
    return stacks(templates, is_protected="protection" not in changes)


def place(path: str) -> list[str]:
    """Return the keys that lead to a path, given in the format of attacks/identity.yaml."""
    stack, name, *rest = [part.replace("~1", "/") for part in path.split("/")]
    if name.startswith("@"):
        return [stack, name[1:], *rest]
    if not rest:
        return [stack, "Resources", name]
    if rest[0].startswith("@"):
        return [stack, "Resources", name, rest[0][1:], *rest[1:]]
    return [stack, "Resources", name, "Properties", *rest]


def put(value: Any, keys: list[str], new: Any) -> None:
    """Set, append or, for None, remove a value."""
    *parents, last = keys
    for key in parents:
        value = value[int(key)] if isinstance(value, list) else value.setdefault(key, {})
    if isinstance(value, list):
        if last == "+":
            value.append(new)
        elif new is None:
            del value[int(last)]
        else:
            value[int(last)] = new
    elif last == "+":
        raise AssertionError(f"{keys}: not a list")
    elif new is None:
        del value[last]
    else:
        value[last] = new


def merge(parts: list[Any], marker: str, changes: Mapping[str, Any]) -> None:
    """Change keys of the JSON document that starts after a marker in a joined text."""
    start = next(place for place, part in enumerate(parts) if marker in str(part))
    before, after = parts[start].split(marker, 1) if marker else ("", parts[start])
    references = [part for part in parts[start + 1 :] if not isinstance(part, str)]
    text = after + "".join(part if isinstance(part, str) else MARK for part in parts[start + 1 :])
    texts = json.dumps({**json.loads(text), **changes}).split(MARK)
    joined = [texts[0]]
    for reference, following in zip(references, texts[1:], strict=False):
        joined += [reference, following]
    parts[start:] = [before + marker + joined[0], *joined[1:]]


def change_node(resources: Any, changes: Mapping[str, Any]) -> None:
    data = resources["NodeTemplate"]["Properties"]["LaunchTemplateData"]
    merge(data["UserData"]["Fn::Base64"]["Fn::Join"][1], "exit # node document\n", changes)


def change_run(resources: Any, changes: Mapping[str, Any]) -> None:
    merge(resources["Run"]["Properties"]["Value"]["Fn::Join"][1], "", changes)


DOCUMENTS: Mapping[str, Callable[[Any, Mapping[str, Any]], None]] = {"node": change_node, "run": change_run}


def reviewed(changes: Mapping[str, Any]) -> Review:
    return review(stacks(BASE), changed(changes))


def subjects(path: str) -> set[str]:
    """Return the names of the resources to which a finding about a path can refer."""
    if path in DOCUMENTS:
        return {"NodeTemplate", "Run"}
    stack, *rest = place(path) if path != "protection" else ["TrainingStack"]
    return {rest[1]} if rest[:1] == ["Resources"] else {stack, *BASE[stack]["Resources"]}


def test_tables_have_the_required_size() -> None:
    assert len(ATTACKS) >= 400


def test_base_without_a_change_has_no_findings() -> None:
    assert reviewed({}).level is Level.NOTHING


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_needs_approval_and_is_named(name: str) -> None:
    changes = ATTACKS[name]
    assert changes
    found = reviewed(changes)
    alarming = [one for one in found.findings if one.direction in ("at risk", "broadened", "needs approval")]
    assert found.level >= Level.NEEDS_APPROVAL, to_json(found)["headline"]
    named = {name for one in alarming for name in (one.logical_id, one.stack)}
    is_cost = any("USD" in one.text for one in alarming)
    assert is_cost or any(named & subjects(path) for path in changes), [one.text for one in alarming]
    assert to_markdown(found)


@pytest.mark.parametrize("key", ["pipeline.repository", "pipeline.branch", "pipeline.approve_from", "pipeline.emails"])
def test_edit_to_the_delivery_section_needs_approval(key: str) -> None:
    edit = Edit(f"delivery.{key}", "old value", "new value")
    found = review(stacks(BASE), stacks(BASE), edits=[edit])
    assert found.level is Level.NEEDS_APPROVAL
    assert f"delivery.{key}: old value -> new value" in to_markdown(found).replace("\\", "")


def test_deployed_parameter_value_is_kept_by_a_deploy() -> None:
    """A value that an operator has set stays, and a new default takes effect only where the old one applied."""
    after = changed({"TrainingStack/@Parameters/Policies/Default": "arn:aws:iam::aws:policy/AdministratorAccess"})
    for value, level in (("arn:aws:iam::aws:policy/ReadOnlyAccess", Level.SAFE), (None, Level.NEEDS_APPROVAL)):
        before = stacks(BASE)
        values = {} if value is None else {"Policies": value}
        before["TrainingStack"] = replace(before["TrainingStack"], parameters=values)
        assert review(before, after).level is level


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each part of a value, outermost first."""
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))


PARTS = [(stack, "Resources", *path) for stack in BASE for path in leaves(BASE[stack]["Resources"])]
STRANGE: list[Any] = [{"Fn::If": ["Unknown", 1, 2]}, {"Ref": "Vpc"}, ["x"], {"x": 1}, 7, "x", None, True, "1e999"]


@pytest.mark.parametrize("first", range(40))
def test_value_of_any_shape_needs_approval_without_an_exception(first: int) -> None:
    """Each part of the base is replaced with values of other types, which the review must recognize or report."""
    for number, path in list(enumerate(PARTS))[first::400]:
        templates = copy.deepcopy(BASE)
        value: Any = templates
        for key in path[:-1]:
            value = value[key]
        new = STRANGE[number % len(STRANGE)]
        if value[path[-1]] == new:
            continue
        value[path[-1]] = new
        found = review(stacks(BASE), stacks(templates))
        assert found.level >= Level.SAFE, path
        assert to_markdown(found)
