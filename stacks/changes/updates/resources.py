"""Resources that a deploy adds, changes in place, replaces or removes, including effects through references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from stacks.changes.templates.references import Exports, Reference, references
from stacks.changes.templates.template_set import PropertyPath, TemplateSet
from stacks.changes.updates.differences import MISSING, Difference, differences, effect_of

Action = Literal["added", "changed in place", "replaced", "removed", "not supported"]
ACTIONS: tuple[Action, ...] = ("added", "changed in place", "replaced", "removed", "not supported")
# Attributes whose value changes when the resource is changed in place. Source (2026-11):
# https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-ec2-launchtemplate.html
MOVING_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "AWS::EC2::LaunchTemplate": ("LatestVersionNumber", "DefaultVersionNumber")
}
Key = tuple[str, str]
"""Stack id and logical id."""


@dataclass(frozen=True)
class ResourceChange:
    """The change to one resource, with both definitions. A definition is None on the side without the resource."""

    stack: str
    logical_id: str
    type: str
    action: Action
    differences: tuple[Difference, ...]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None

    @property
    def key(self) -> Key:
        """The resource's stack id and logical id."""
        return self.stack, self.logical_id

    @property
    def is_metadata_only(self) -> bool:
        """Whether only metadata differs."""
        return bool(self.differences) and all(one.is_metadata for one in self.differences)

    def properties(self, side: Literal["before", "after"]) -> Mapping[str, Any]:
        """Return the properties on one side, or an empty mapping if that side does not have the resource."""
        definition = self.before if side == "before" else self.after
        found: Mapping[str, Any] = {} if definition is None else definition.get("Properties", {})
        return found


def resource_changes(before: TemplateSet, after: TemplateSet) -> list[ResourceChange]:
    """Return all changed resources, by stack and in template order."""
    return _Comparison(before, after).changes()


class _Comparison:
    """Two template sets and the differences found so far."""

    def __init__(self, before: TemplateSet, after: TemplateSet) -> None:
        self._before = before
        self._after = after
        self._exports = Exports(after)
        self._found: dict[Key, list[Difference]] = {}
        for stack_id, logical_id, old, new in self._common():
            if old["Type"] == new["Type"]:
                self._found[stack_id, logical_id] = differences(old, new)

    def changes(self) -> list[ResourceChange]:
        """Return all changes, including those that references cause."""
        self._follow_references()
        return [change for stack in self._stack_ids() for change in self._of_stack(stack)]

    def _stack_ids(self) -> list[str]:
        return [*self._after, *(one for one in self._before if one not in self._after)]

    def _common(self) -> Iterator[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]]:
        for stack_id, stack in self._after.items():
            old = self._before[stack_id].resources if stack_id in self._before else {}
            for logical_id, definition in stack.resources.items():
                if logical_id in old:
                    yield stack_id, logical_id, old[logical_id], definition

    def _moves(self, reference: Reference) -> bool:
        """Return True if a reference has a different value after the deploy."""
        found = self._found.get((reference.stack, reference.logical_id))
        if found is None:
            return self._is_changed_parameter(reference)
        if any(one.effect == "replaces" for one in found):
            return True
        kind = self._after[reference.stack].resources[reference.logical_id]["Type"]
        if reference.attribute not in MOVING_ATTRIBUTES.get(kind, ()):
            return False
        return any(one.path[0] == "LaunchTemplateData" for one in found)

    def _is_changed_parameter(self, reference: Reference) -> bool:
        if reference.stack not in self._before:
            return False
        old, new = (
            one[reference.stack].template.get("Parameters", {}).get(reference.logical_id)
            for one in (self._before, self._after)
        )
        return old is not None and new is not None and old.get("Default") != new.get("Default")

    def _follow_references(self) -> None:
        """Add the differences that changed reference targets cause, until there are no more."""
        incoming = [
            (stack_id, logical_id, old, new, list(references(new.get("Properties", {}), stack_id, self._exports)))
            for stack_id, logical_id, old, new in self._common()
            if old["Type"] == new["Type"]
        ]
        grew = True
        while grew:
            grew = False
            for stack_id, logical_id, old, new, targets in incoming:
                found = self._found[stack_id, logical_id]
                for path, reference in targets:
                    if not _covers(found, path) and self._moves(reference):
                        found.append(_followed(old, new, path, reference))
                        grew = True

    def _of_stack(self, stack_id: str) -> Iterator[ResourceChange]:
        old = self._before[stack_id].resources if stack_id in self._before else {}
        new = self._after[stack_id].resources if stack_id in self._after else {}
        for logical_id in [*new, *(one for one in old if one not in new)]:
            was, becomes = old.get(logical_id), new.get(logical_id)
            found = tuple(self._found.get((stack_id, logical_id), ()))
            action = _action(was, becomes, found)
            if action is not None:
                kind = str((becomes or was or {})["Type"])
                yield ResourceChange(stack_id, logical_id, kind, action, found, was, becomes)


def _covers(found: list[Difference], path: PropertyPath) -> bool:
    """Return True if a property is already among the differences, either itself or as part of another property."""
    return any(
        one.path[: len(path)] == path or path[: len(one.path)] == tuple(p for p in one.path if not p.isdigit())
        for one in found
    )


def _followed(old: Mapping[str, Any], new: Mapping[str, Any], path: PropertyPath, reference: Reference) -> Difference:
    effect, source = effect_of(new["Type"], path, old, new)
    return Difference(path, MISSING, MISSING, effect, via=reference, source=source)


def _action(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, found: tuple[Difference, ...]
) -> Action | None:
    if before is None:
        return "added"
    if after is None:
        return "removed"
    if before["Type"] != after["Type"]:
        return "not supported"
    effects = {one.effect for one in found}
    if "not supported" in effects:
        return "not supported"
    if "replaces" in effects:
        return "replaced"
    return "changed in place" if found else None


def without_metadata(changes: list[ResourceChange]) -> list[ResourceChange]:
    """Return the changes without metadata differences and without resources that differ only in metadata."""
    return [
        replace(change, differences=tuple(one for one in change.differences if not one.is_metadata))
        for change in changes
        if not change.is_metadata_only
    ]
