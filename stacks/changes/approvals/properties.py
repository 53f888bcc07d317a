"""Compares each changed resource with the tables, and reports the changes that the tables do not accept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stacks.artifacts.review_code import OUTPUT
from stacks.changes.approvals.identities import decides_identity
from stacks.changes.approvals.known import Known, Presence
from stacks.changes.approvals.rules import Change, Rule, Sides
from stacks.changes.approvals.tables import DELETION, KNOWN, METADATA
from stacks.changes.effects.data import STATEFUL
from stacks.changes.findings import Finding
from stacks.changes.templates.references import is_intrinsic
from stacks.changes.templates.template_set import PropertyPath, StackTemplate, TemplateSet
from stacks.changes.templates.values import mapping, parse_documents, text_of
from stacks.changes.updates.differences import MISSING
from stacks.changes.updates.resources import ResourceChange

MAX_VALUE_CHARACTERS = 200
NOT_A_PROPERTY = "the review does not recognize this property"
RESOLVED_LATER = "{{resolve:"
"""Start of a dynamic reference, which CloudFormation replaces with a parameter or a secret during the deploy. Source
(2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/dynamic-references.html"""
_SECTIONS = (
    "AWSTemplateFormatVersion", "Conditions", "Description", "Mappings", "Metadata", "Outputs", "Parameters",
    "Resources", "Rules",
)  # fmt: skip
"""Template sections that have no effect, or affect only the evaluated resources and outputs."""
_REVIEWED = ("AWS::IAM::",)
"""Type prefixes. Unknown types with these prefixes are reported as permission findings."""


def approval_findings(before: TemplateSet, after: TemplateSet, changes: Sequence[ResourceChange]) -> list[Finding]:
    """Return the changes that need approval. A new stack is one finding.

    Args:
        before: The old stacks, resolved.
        after: The new stacks, resolved.
        changes: All changed resources, including changes to metadata.
    """
    sides = Sides.of(before, after)
    found = [
        Finding("approval", "needs approval", name, "", (), f"{after[name].name} is a new stack")
        for name in after
        if name not in before
    ]
    for name in after:
        if name in before:
            found += _of_template(before[name], after[name])
    for change in changes:
        if change.stack in before:
            found += _of_resource(change, sides)
    return found


def _of_template(before: StackTemplate, after: StackTemplate) -> Iterator[Finding]:
    """Yield changes to sections that the review does not inspect, and to exported values."""
    for name in sorted(before.template.keys() | after.template.keys()):
        was, becomes = before.template.get(name, MISSING), after.template.get(name, MISSING)
        if name not in _SECTIONS and was != becomes:
            text = f"template section {name}: {_change_text(was, becomes)}: the review does not inspect it"
            yield Finding("approval", "needs approval", after.id, "", (name,), text)
    old, new = (mapping(one.template.get("Outputs")) for one in (before, after))
    for name in sorted(old.keys() | new.keys()):
        was, becomes = (mapping(one.get(name)) for one in (old, new))
        reason = None
        if name == OUTPUT and was != becomes:
            reason = "the review's own code changes"
        elif reads_elsewhere(was, becomes):
            reason = "CloudFormation reads the value from another source"
        elif "Export" in was and name in new and was.get("Value") != becomes.get("Value"):
            reason = "other stacks import it"
        if reason is not None:
            text = f"output {name}: {_change_text(was.get('Value', MISSING), becomes.get('Value', MISSING))}: {reason}"
            yield Finding("approval", "needs approval", after.id, "", ("Outputs", name), text)


def _of_resource(change: ResourceChange, sides: Sides) -> Iterator[Finding]:
    known = KNOWN.get(change.type)
    if change.before is not None and change.after is not None and change.before["Type"] != change.after["Type"]:
        yield _finding(change, (), f"becomes a {change.after['Type']}")
        return
    if known is None and not change.type.startswith(_REVIEWED):
        yield from _of_unknown_type(change)
        return
    known = known or Known(added="passes", removed="passes")
    if change.action == "removed":
        if not _may_be(known.removed, change, sides):
            yield _finding(change, (), f"the {change.type} is removed")
        return
    if change.action == "added" and not _may_be(known.added, change, sides):
        yield _finding(change, (), f"a {change.type} is added")
    if change.type not in KNOWN:
        return
    for path, was, becomes in _changed_properties(change):
        yield from _of_property(change, known, path, was, becomes, sides)
    yield from _of_attributes(change)


def _of_unknown_type(change: ResourceChange) -> Iterator[Finding]:
    reason = f"the review does not recognize the type {change.type}"
    if change.action in ("added", "removed"):
        yield _finding(change, (), f"is {change.action}: {reason}")
    for one in change.differences:
        if not one.is_attribute:
            yield _finding(change, one.path, f"{_change_text(one.before, one.after)}: {reason}")
    yield from _of_attributes(change)


def _may_be(presence: Presence, change: ResourceChange, sides: Sides) -> bool:
    if presence == "in its own network":
        return text_of(change.properties("before").get("VpcId")).startswith("${")
    if presence != "with its subnet":
        return presence == "passes"
    subnet = text_of(change.properties("before").get("SubnetId"))
    stack = sides.after[change.stack]
    return subnet.startswith("${") and subnet.strip("${}").partition(".")[0] not in stack.resources


def _changed_properties(change: ResourceChange) -> Iterator[tuple[PropertyPath, Any, Any]]:
    """Yield the path and both values of each changed property, except references whose value changes.

    The change to the referenced resource is compared instead.
    """
    if change.before is None:
        properties = parse_documents(change.type, change.properties("after"))
        yield from (((name,), MISSING, value) for name, value in properties.items())
        return
    for one in change.differences:
        if one.via is None and not one.is_attribute:
            yield one.path, one.before, one.after


def _of_property(
    change: ResourceChange, known: Known, path: PropertyPath, was: Any, becomes: Any, sides: Sides
) -> Iterator[Finding]:
    if reads_elsewhere(was, becomes):
        yield _finding(
            change, path, f"{_change_text(was, becomes)}: CloudFormation reads the value from another source"
        )
        return
    rule, length = _rule(known, path)
    if rule is not None:
        where = path[:length]
        old, new = (_at(_properties(change, side), where) for side in ("before", "after"))
        reason = rule(Change(change, where, old, new, sides))
        if reason is not None:
            yield _finding(change, where, f"{_change_text(old, new)}: {reason}")
        return
    if _has_rules_below(known, path) and not is_intrinsic(was) and not is_intrinsic(becomes):
        parts = [_parts(value) for value in (was, becomes)]
        if all(one is not None for one in parts):
            old_parts, new_parts = (one or {} for one in parts)
            for name in dict.fromkeys((*old_parts, *new_parts)):
                pair = old_parts.get(name, MISSING), new_parts.get(name, MISSING)
                if pair[0] != pair[1]:
                    yield from _of_property(change, known, (*path, name), *pair, sides)
            return
    reason = decides_identity(change.type, path) or NOT_A_PROPERTY
    yield _finding(change, path, f"{_change_text(was, becomes)}: {reason}")


def reads_elsewhere(was: Any, becomes: Any) -> bool:
    """Return True if a changed value contains a dynamic reference. A review cannot know its result."""
    return was != becomes and RESOLVED_LATER in ("" if becomes is MISSING else text_of(becomes))


def _properties(change: ResourceChange, side: Any) -> Mapping[str, Any]:
    return parse_documents(change.type, change.properties(side))


def _parts(value: Any) -> dict[str, Any] | None:
    """Return the parts of a value by name or position: no parts for a missing value, and None for a scalar."""
    if value is MISSING:
        return {}
    if isinstance(value, list):
        return {str(place): item for place, item in enumerate(value)}
    return dict(value) if isinstance(value, Mapping) else None


def _at(value: Any, path: PropertyPath) -> Any:
    for part in path:
        if isinstance(value, list):
            value = value[int(part)] if part.isdigit() and int(part) < len(value) else MISSING
        else:
            value = value.get(part, MISSING) if isinstance(value, Mapping) else MISSING
    return value


def _rule(known: Known, path: PropertyPath) -> tuple[Rule | None, int]:
    """Return the rule with the longest path that contains a property, and the length of that path in `path`."""
    for length in range(len(path), 0, -1):
        if not path[length - 1].isdigit():
            rule = known.properties.get("/".join(_named(path[:length])))
            if rule is not None:
                return rule, length
    return None, 0


def _has_rules_below(known: Known, path: PropertyPath) -> bool:
    prefix = "/".join(_named(path)) + "/"
    return any(name.startswith(prefix) for name in known.properties)


def _named(path: PropertyPath) -> PropertyPath:
    return tuple(part for part in path if not part.isdigit())


def _of_attributes(change: ResourceChange) -> Iterator[Finding]:
    """Yield changes to attributes and metadata."""
    if change.after is None:
        return
    old, new = change.before or {}, change.after
    for name in sorted((old.keys() | new.keys()) - {"Type", "Properties", "Metadata", "DependsOn"}):
        was, becomes = old.get(name, MISSING), new.get(name, MISSING)
        if was == becomes or change.before is None or (name in DELETION and change.type in STATEFUL):
            continue
        if name in DELETION and text_of(becomes) != "Retain":
            yield _finding(change, (name,), f"{_change_text(was, becomes)}: the old resource may be deleted")
        elif name not in DELETION:
            yield _finding(
                change, (name,), f"{_change_text(was, becomes)}: the review does not recognize this attribute"
            )
    was, becomes = (mapping(one.get("Metadata")) for one in (old, new))
    for name in sorted(was.keys() | becomes.keys()):
        if was.get(name) != becomes.get(name) and not name.startswith(METADATA):
            text = f"{_change_text(was.get(name, MISSING), becomes.get(name, MISSING))}: instances can read it"
            yield _finding(change, ("Metadata", name), text)


def _change_text(before: Any, after: Any) -> str:
    return f"{_value_text(before)} -> {_value_text(after)}"


def _value_text(value: Any) -> str:
    text = "none" if value is MISSING else text_of(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}..."


def _finding(change: ResourceChange, path: PropertyPath, text: str) -> Finding:
    place = f"{'/'.join(path)}: " if path else ""
    return Finding("approval", "needs approval", change.stack, change.logical_id, path, f"{place}{text}")
