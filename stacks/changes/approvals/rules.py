"""Rules for changes to properties. A rule returns the reason why a change needs approval, or None to accept it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from stacks.changes.effects.iam_permissions import Names, Permission, permissions_of
from stacks.changes.templates.references import Exports, Reference, references
from stacks.changes.templates.template_set import PropertyPath, TemplateSet
from stacks.changes.templates.values import listed, mapping, mappings, number, text_of
from stacks.changes.updates.differences import MISSING
from stacks.changes.updates.resources import ResourceChange

OWN_TAGS = ("trainstack:", "aws:", "aws-cdk:")
"""Prefixes of tags that the project and AWS read."""
MAX_GROWTH = 2.0
"""Largest growth factor of a node count or a cost that does not need approval."""


@dataclass(frozen=True)
class Sides:
    """Both template sets of a review, and the values that the rules need from them."""

    before: TemplateSet
    after: TemplateSet
    exports: Exports
    condition_tags: frozenset[str]
    """Tag keys that a policy or a snapshot rule reads, on either side."""

    @classmethod
    def of(cls, before: TemplateSet, after: TemplateSet) -> Sides:
        """Collect the values from both template sets."""
        stacks = (*before.values(), *after.values())
        return cls(before, after, Exports(after), frozenset(key for one in stacks for key in _read_tags(one.template)))

    def targets(self, value: Any, stack: str, *types: str) -> list[Reference]:
        """Return the references in a value to resources of the given types."""
        found = (reference for _, reference in references(value, stack, self.exports))
        return [one for one in found if self.type_of(one) in types]

    def type_of(self, reference: Reference) -> str:
        """Return the type of the resource that a reference names, or "" if the new side does not contain it."""
        stack = self.after.get(reference.stack)
        return "" if stack is None else str(stack.resources.get(reference.logical_id, {}).get("Type", ""))


@dataclass(frozen=True)
class Change:
    """A change to one property. `before` or `after` is MISSING if that side does not have the property."""

    resource: ResourceChange
    path: PropertyPath
    before: Any
    after: Any
    sides: Sides

    @property
    def is_new(self) -> bool:
        """Whether the change adds the resource."""
        return self.resource.before is None

    def added(self) -> list[Any]:
        """Return the items of a list that the old side does not contain. An intrinsic function is one unknown item."""
        old = [] if self.before is MISSING else listed(self.before)
        return [] if self.after is MISSING else [one for one in listed(self.after) if one not in old]


Rule = Callable[[Change], str | None]


def passes(_: Change) -> None:
    """Accept any change."""
    return


def found_elsewhere(_: Change) -> None:
    """Accept any change, because the findings about data, permissions, network access or nodes cover the property."""
    return


def asks(reason: str) -> Rule:
    """Return a rule under which every change needs approval."""
    return lambda _: reason


def any_of(*values: Any, default: Any = MISSING) -> Rule:
    """Return a rule that accepts the given new values. `default` is the value of a missing property."""
    texts = {text_of(value) for value in values}

    def rule(change: Change) -> str | None:
        value = default if change.after is MISSING else change.after
        return None if value is not MISSING and text_of(value) in texts else "is not a value that the review recognizes"

    return rule


def in_new_resources(rule: Rule) -> Rule:
    """Return a rule that applies to added resources. A change to an existing resource needs approval."""
    return lambda change: rule(change) if change.is_new else "changes on an existing resource"


def numbers(change: Change) -> str | None:
    """Accept a number, or a property that is not set."""
    if change.after is MISSING or number(change.after) is not None:
        return None
    return "is not a number"


def bounded_growth(change: Change) -> str | None:
    """Accept a number that at most doubles."""
    was, becomes = number(change.before), number(change.after)
    if becomes is None:
        return "cannot be compared"
    if was is None:
        return None if change.is_new else "has no old value to compare with"
    return None if becomes <= max(was * MAX_GROWTH, 1.0) else f"grows by a factor of more than {MAX_GROWTH:g}"


def at_most(bound: float) -> Rule:
    """Return a rule that accepts numbers up to a bound."""

    def rule(change: Change) -> str | None:
        found = number(change.after)
        return None if found is not None and found <= bound else f"is more than {bound:g}, or unknown"

    return rule


def no_increase(change: Change) -> str | None:
    """Accept a number that does not grow."""
    return _ordered(change, "grows", lambda was, becomes: becomes <= was)


def no_decrease(change: Change) -> str | None:
    """Accept a number that does not shrink."""
    return _ordered(change, "shrinks", lambda was, becomes: becomes >= was)


def lower_limit(change: Change) -> str | None:
    """Accept a limit that does not grow. An empty text means that there is no limit."""
    was, becomes = (inf if text_of(one) == "" else number(one) for one in (change.before, change.after))
    if was is None or becomes is None:
        return "cannot be compared"
    return None if becomes <= was else "grows, or is removed"


def _ordered(change: Change, verb: str, is_right: Callable[[float, float], bool]) -> str | None:
    was, becomes = number(change.before), number(change.after)
    if change.is_new and becomes is not None:
        return None
    if was is None or becomes is None:
        return "cannot be compared"
    return None if is_right(was, becomes) else verb


def tags(change: Change) -> str | None:
    """Accept tags that are not read by the project, the deployment's policies or its snapshot rules."""
    old, new = _tags(change.before), _tags(change.after)
    if old is None or new is None:
        return "cannot be compared"
    for key in sorted(old.keys() | new.keys()):
        is_read = key in change.sides.condition_tags or key.startswith(OWN_TAGS)
        if is_read and old.get(key) != new.get(key) and not change.is_new:
            return f"has the tag {key}, which policies or functions read"
    return None


def _tags(value: Any) -> dict[str, Any] | None:
    """Return tags in any CloudFormation format as a mapping, or None if they cannot be read."""
    if value is MISSING:
        return {}
    if mapping(value):
        return dict(value)
    items = mappings(value)
    if not isinstance(value, list) or len(items) != len(value) or any("Key" not in one for one in items):
        return None
    return {text_of(one["Key"]): one for one in items}


def tag_specifications(change: Change) -> str | None:
    """Accept tag specifications with unchanged resource types and accepted tags."""
    old, new = ([] if one is MISSING else mappings(one) for one in (change.before, change.after))
    types = [[one.get("ResourceType") for one in side] for side in (old, new)]
    if change.is_new:
        return None
    if types[0] != types[1] or len(new) != len(listed(change.after)):
        return "has different resource types"
    for was, becomes in zip(old, new, strict=True):
        pair = was.get("Tags", MISSING), becomes.get("Tags", MISSING)
        reason = tags(Change(change.resource, change.path, *pair, change.sides))
        if reason is not None:
            return reason
    return None


def own(*types: str) -> Rule:
    """Return a rule that accepts references to the deployment's resources of the given types, and removed values."""

    def rule(change: Change) -> str | None:
        for value in change.added():
            found = list(references(value, change.resource.stack, change.sides.exports))
            if len(found) != 1 or change.sides.type_of(found[0][1]) not in types or "Fn::" in text_of(value):
                return f"names {text_of(value)}, which is not part of the deployment"
        return None

    return rule


def administered_key(change: Change) -> str | None:
    """Accept a key policy that keeps the key's administrators. The findings about permissions cover everything else."""
    old, new = (_administrators(value) for value in (change.before, change.after))
    return "no longer lets the same principals administer the key" if old - new else None


def _administrators(policy: Any) -> set[Permission]:
    return {one for one in permissions_of(None if policy is MISSING else policy) if one.action == Names(("kms:*",))}


def stricter_alarm(change: Change) -> str | None:
    """Accept a threshold that does not make an alarm fire later."""
    operator = text_of(change.resource.properties("after").get("ComparisonOperator"))
    if operator.startswith("GreaterThan"):
        return no_increase(change)
    return no_decrease(change) if operator.startswith("LessThan") else "cannot be compared"


def _read_tags(template: Any) -> Iterator[str]:
    """Yield the keys of tags that conditions (as .../ResourceTag/KEY) or snapshot rules read."""
    if isinstance(template, list):
        for item in template:
            yield from _read_tags(item)
    elif isinstance(template, dict):  # Mapping is slower, and templates contain many values
        for name, value in template.items():
            kind, _, key = str(name).partition("/")
            if key and kind.lower().endswith(("resourcetag", "principaltag", "requesttag")):
                yield key
            if name == "TargetTags":
                yield from (text_of(one["Key"]) for one in mappings(value) if "Key" in one)
            yield from _read_tags(value)
