"""Changes that CloudFormation would reject, each with a remedy.

Sources (2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-cfn-stack-exports.html (an
export in use can neither be removed nor changed) and
https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-properties-name.html (a resource with a
custom name cannot be replaced under that name).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stacks.changes.templates.references import Exports, references
from stacks.changes.templates.template_set import TemplateSet
from stacks.changes.templates.values import text_of
from stacks.changes.updates.resources import ResourceChange
from stacks.changes.updates.schemas import given_name
from stacks.changes.updates.schemas import paths as schema_paths


@dataclass(frozen=True)
class Blocker:
    """The reason why a deploy would fail at a resource or export, and the remedy."""

    stack: str
    logical_id: str
    reason: str
    remedy: str


def blockers(before: TemplateSet, after: TemplateSet, changes: Sequence[ResourceChange]) -> list[Blocker]:
    """Return the changes that would make the deploy fail."""
    return [
        *(one for change in changes for one in _of_resource(change)),
        *_of_exports(before, after, changes),
    ]


def _of_resource(change: ResourceChange) -> Iterator[Blocker]:
    where = change.stack, change.logical_id
    if change.before is not None and change.after is not None and change.before["Type"] != change.after["Type"]:
        reason = f"cannot become a {change.after['Type']}: it is a {change.before['Type']} under the same logical id"
        yield Blocker(*where, reason, f"destroy {change.stack} first, then deploy")
        return
    for one in change.differences:
        if one.effect == "not supported":
            reason = f"{'/'.join(one.path)} cannot be changed ({one.source})"
            yield Blocker(*where, reason, "create a new resource, move the data, then remove this one")
    if change.action == "replaced" and _keeps_name(change):
        reason = "must be replaced, but the old resource has the same fixed name"
        yield Blocker(*where, reason, "choose another name, or remove the resource in a separate deploy first")


def _keeps_name(change: ResourceChange) -> bool:
    old, new = change.properties("before"), change.properties("after")
    # A reference can change the name even if the text stays the same.
    moved = {one.path[0] for one in change.differences if one.via is not None}
    own = f"{change.type.rsplit('::', 1)[-1]}Name"
    if (own,) in schema_paths(change.type, "createOnlyProperties") and own in new and own not in moved:
        return bool(old.get(own) == new[own])
    identity = {path[0] for path in schema_paths(change.type, "primaryIdentifier")}
    name = given_name(change.type, new)
    return name is not None and not identity & moved and name == given_name(change.type, old)


def _of_exports(before: TemplateSet, after: TemplateSet, changes: Sequence[ResourceChange]) -> Iterator[Blocker]:
    """Yield exports that would be removed or changed while in use. Exports with the same remedy share one blocker."""
    old, new = Exports(before), Exports(after)
    replaced = {change.key for change in changes if change.action == "replaced"}
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for stack_id in before:
        now = new.of_stack(stack_id)
        for name, value in old.of_stack(stack_id).items():
            users = [one for one in old.importers(name) if one != stack_id]
            importers = " and ".join(users)
            if not users:
                continue
            if name not in now:
                # The importing stacks can be deployed first only if they do not need new exports.
                deployable = all(new.imported_by(one) <= set(old.names) for one in users)
                deploy = f"run `cdk deploy {' '.join(users)} --exclusively` first, then deploy all stacks"
                group = stack_id, "removed", importers, deploy if deployable else _destroy(users)
            elif now[name] != value or any(
                (one.stack, one.logical_id) in replaced for _, one in references(now[name], stack_id, new)
            ):
                group = stack_id, "changed", importers, _destroy(users)
            else:
                continue
            groups.setdefault(group, []).append(text_of(value).strip("${}"))
    for (stack_id, verb, importers, remedy), values in groups.items():
        yield Blocker(stack_id, ", ".join(values), f"export would be {verb} while {importers} imports it", remedy)


def _destroy(users: Sequence[str]) -> str:
    stacks = " and ".join(reversed(users))
    return f"destroy {stacks} first, then deploy all stacks: nodes terminate; buckets and keys remain"
