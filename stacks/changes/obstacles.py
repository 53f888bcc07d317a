"""What CloudFormation will refuse: known before the deploy, told with the way round.

Sources (2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-cfn-stack-exports.html (an
export in use can neither go nor change) and
https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-properties-name.html (a resource with a name
of its own cannot be replaced under that name).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stacks.changes.assembly import Assembly
from stacks.changes.references import Exports, references
from stacks.changes.resources import ResourceChange
from stacks.changes.schemas import given_name
from stacks.changes.schemas import paths as schema_paths
from stacks.changes.texts import text_of


@dataclass(frozen=True)
class Obstacle:
    """Why a deploy would fail at a resource or an export, and what to do instead."""

    stack: str
    logical_id: str
    reason: str
    remedy: str


def obstacles(before: Assembly, after: Assembly, changes: Sequence[ResourceChange]) -> list[Obstacle]:
    """Return what stands in the way of a deploy."""
    return [
        *(one for change in changes for one in _of_resource(change)),
        *_of_exports(before, after, changes),
    ]


def _of_resource(change: ResourceChange) -> Iterator[Obstacle]:
    where = change.stack, change.logical_id
    if change.before is not None and change.after is not None and change.before["Type"] != change.after["Type"]:
        reason = f"cannot become a {change.after['Type']}: it is a {change.before['Type']} under the same logical id"
        yield Obstacle(*where, reason, f"destroy {change.stack} first, then deploy")
        return
    for one in change.differences:
        if one.effect == "not supported":
            told = f"{'/'.join(one.path)} cannot be changed ({one.source})"
            yield Obstacle(*where, told, "make a new resource, move what it holds, then remove this one")
    if change.action == "replaced" and _keeps_name(change):
        reason = "must be replaced, and its fixed name is taken by the old one"
        yield Obstacle(*where, reason, "give it another name, or remove it in a deploy of its own first")


def _keeps_name(change: ResourceChange) -> bool:
    old, new = change.properties("before"), change.properties("after")
    # Moved by a reference: the name is another one although the text stays.
    moved = {one.path[0] for one in change.differences if one.via is not None}
    own = f"{change.type.rsplit('::', 1)[-1]}Name"
    if (own,) in schema_paths(change.type, "createOnlyProperties") and own in new and own not in moved:
        return bool(old.get(own) == new[own])
    identity = {path[0] for path in schema_paths(change.type, "primaryIdentifier")}
    name = given_name(change.type, new)
    return name is not None and not identity & moved and name == given_name(change.type, old)


def _of_exports(before: Assembly, after: Assembly, changes: Sequence[ResourceChange]) -> Iterator[Obstacle]:
    """Yield the exports that would go or change under their importers, those with the same way round as one."""
    old, new = Exports(before), Exports(after)
    replaced = {change.key for change in changes if change.action == "replaced"}
    together: dict[tuple[str, str, str, str], list[str]] = {}
    for stack_id in before:
        now = new.of_stack(stack_id)
        for name, value in old.of_stack(stack_id).items():
            users = [one for one in old.importers(name) if one != stack_id]
            who = " and ".join(users)
            if not users:
                continue
            if name not in now:
                # What a stack imports is deployed before it: by itself it must do with what is exported already.
                alone = all(new.imported_by(one) <= set(old.names) for one in users)
                deploy = f"`cdk deploy {' '.join(users)} --exclusively` first, then all"
                place = stack_id, "go", who, deploy if alone else _destroy(users)
            elif now[name] != value or any(
                (one.stack, one.logical_id) in replaced for _, one in references(now[name], stack_id, new)
            ):
                place = stack_id, "change", who, _destroy(users)
            else:
                continue
            together.setdefault(place, []).append(text_of(value).strip("${}"))
    for (stack_id, verb, who, remedy), told in together.items():
        names = ", ".join(told)
        yield Obstacle(stack_id, names, f"exported, and would {verb} while {who} imports it", remedy)


def _destroy(users: Sequence[str]) -> str:
    return f"destroy {' and '.join(reversed(users))} first, then deploy all: nodes end, buckets and keys stay"
