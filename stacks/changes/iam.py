"""Which rights a deploy broadens or narrows: policies of roles, trust, boundaries, and policies of buckets and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stacks.changes.assembly import Assembly, resources_of_type
from stacks.changes.findings import Direction, Finding
from stacks.changes.resources import ResourceChange
from stacks.changes.schemas import PropertyPath
from stacks.changes.statements import Right, broadened, narrowed, rights_of
from stacks.changes.texts import text_of

ATTACHED = ("AWS::IAM::Policy", "AWS::IAM::RolePolicy")
"""Policies that are part of the role they name, and compared as such."""
DOCUMENTS = ("PolicyDocument", "KeyPolicy", "ResourcePolicy", "RepositoryPolicyText", "FileSystemPolicy", "Policy")
"""Properties that hold a policy of whatever resource has them."""
COMPARED = (*ATTACHED, "AWS::IAM::Role", "AWS::IAM::ManagedPolicy", "AWS::IAM::InstanceProfile")
"""Types of IAM whose rights are compared; of the others (users, groups, identity providers) a reviewer is told."""
PERMISSION = "AWS::Lambda::Permission"
OF_NETWORK = ("AWS::EC2::VPCEndpoint",)
"""Types whose policies are the network's to tell."""


def iam_findings(before: Assembly, after: Assembly, changes: Sequence[ResourceChange]) -> list[Finding]:
    """Return what may be done from now on, and what no longer."""
    found: list[Finding] = []
    for change in changes:
        if change.type == "AWS::IAM::Role":
            found += _trust(change)
            found += _attachments(change)
            found += _boundary(change)
        elif change.type == "AWS::IAM::ServiceLinkedRole":
            service = text_of(change.properties("after" if change.after else "before").get("AWSServiceName", ""))
            verb, direction = _appears(change)
            found.append(_finding(change, direction, ("AWSServiceName",), f"the role of {service} itself is {verb}"))
        elif change.type.startswith("AWS::IAM::") and change.type not in COMPARED:
            found += _not_compared(change)
        elif change.type not in (*ATTACHED, *OF_NETWORK, PERMISSION):
            found += _own_policy(change)
    return [*found, *_invocations(before, after, changes), *_roles(before, after, changes)]


def _finding(change: ResourceChange, direction: Direction, path: PropertyPath, text: str) -> Finding:
    return Finding("iam", direction, change.stack, change.logical_id, path, text)


def _appears(change: ResourceChange) -> tuple[str, Direction]:
    return ("removed", "narrowed") if change.action == "removed" else ("added", "broadened")


def in_words(rights: Sequence[Right]) -> Iterator[tuple[str, str]]:
    """Yield the effect and the text of rights, those that differ in their action alone as one."""
    grouped: dict[Right, list[str]] = {}
    for one in rights:
        grouped.setdefault(replace(one, action=""), []).append(one.action)
    for one, actions in grouped.items():
        yield one.effect, str(replace(one, action=", ".join(dict.fromkeys(actions))))


def compared(old: Sequence[Right], new: Sequence[Right]) -> Iterator[tuple[Direction, str]]:
    """Yield in words what each of two sets of rights allows that the other does not."""
    for effect, text in in_words(broadened(old, new)):
        yield "broadened", f"allows {text}" if effect == "Allow" else f"no longer denies {text}"
    for effect, text in in_words(narrowed(old, new)):
        yield "narrowed", f"no longer allows {text}" if effect == "Allow" else f"denies {text}"


def _compared(
    change: ResourceChange, path: PropertyPath, old: Sequence[Right], new: Sequence[Right], what: str = ""
) -> Iterator[Finding]:
    for direction, text in compared(old, new):
        yield _finding(change, direction, path, what + text)


def _not_compared(change: ResourceChange) -> Iterator[Finding]:
    if change.action == "removed":
        yield _finding(change, "narrowed", (), f"the {change.type} is removed")
        return
    for path in [one.path for one in change.differences] or [()]:
        yield _finding(change, "broadened", path, f"the {change.type} is {change.action}: look at what it may do")


def _trust(change: ResourceChange) -> Iterator[Finding]:
    path = "AssumeRolePolicyDocument"
    old, new = (rights_of(change.properties(side).get(path)) for side in ("before", "after"))
    yield from _compared(change, (path,), old, new, "trust: ")


def _attachments(change: ResourceChange) -> Iterator[Finding]:
    path = "ManagedPolicyArns"
    old, new = ([text_of(one) for one in change.properties(side).get(path, [])] for side in ("before", "after"))
    for name in new:
        if name not in old:
            yield _finding(change, "broadened", (path,), f"gets all that {name} allows")
    for name in old:
        if name not in new:
            yield _finding(change, "narrowed", (path,), f"loses what {name} allows")


def _boundary(change: ResourceChange) -> Iterator[Finding]:
    path = "PermissionsBoundary"
    old, new = (change.properties(side).get(path) for side in ("before", "after"))
    if change.before is None or change.after is None or old == new:
        return
    if new is None:
        yield _finding(change, "broadened", (path,), f"is no longer bounded by {text_of(old)}")
    elif old is None:
        yield _finding(change, "narrowed", (path,), f"is bounded by {text_of(new)}")
    else:
        text = f"is bounded by {text_of(new)} and no longer by {text_of(old)}: compare the two"
        yield _finding(change, "broadened", (path,), text)


def _invocations(before: Assembly, after: Assembly, changes: Sequence[ResourceChange]) -> Iterator[Finding]:
    """Yield who may call functions, by all permissions of a stack: one under another logical id is the same."""
    old, new = ([right for _, _, one in resources_of_type(side, PERMISSION) for right in _invocation(one)]
                for side in (before, after))  # fmt: skip
    for change in changes:
        if change.type == PERMISSION:
            mine = [_invocation(one) if one is not None else [] for one in (change.before, change.after)]
            for direction, text in compared(old, [*old, *mine[1]]):
                yield _finding(change, direction, (), text)
            for direction, text in compared([*new, *mine[0]], new):
                yield _finding(change, direction, (), text)


def _invocation(permission: Mapping[str, Any]) -> list[Right]:
    properties = permission["Properties"]
    conditions = frozenset(
        ("Equals", name, frozenset([text_of(properties[name])]))
        for name in ("SourceArn", "SourceAccount", "PrincipalOrgID", "FunctionUrlAuthType")
        if name in properties
    )
    who, what = text_of(properties["Principal"]), text_of(properties["FunctionName"])
    return [Right("Allow", text_of(properties["Action"]), what, who, conditions)]


def _own_policy(change: ResourceChange) -> Iterator[Finding]:
    for name in DOCUMENTS:
        old, new = (rights_of(change.properties(side).get(name), "") for side in ("before", "after"))
        if old == new:
            continue
        what = "managed policy: " if change.type == "AWS::IAM::ManagedPolicy" else ""
        yield from _compared(change, (name,), old, new, what)


def _roles(before: Assembly, after: Assembly, changes: Sequence[ResourceChange]) -> Iterator[Finding]:
    """Yield what the policies of each role allow together: a statement may move from one to the other."""
    by_role: dict[tuple[str, str], ResourceChange] = {}
    for change in changes:
        if change.type in ATTACHED or change.type == "AWS::IAM::Role":
            for definition in (change.before, change.after):
                for role in [change.logical_id] if change.type == "AWS::IAM::Role" else _role_names(definition):
                    # The policy that differs is named, where there is one.
                    if change.type in ATTACHED or (change.stack, role) not in by_role:
                        by_role[change.stack, role] = change
    for (stack, role), change in by_role.items():
        old, new = _role_rights(before, stack, role), _role_rights(after, stack, role)
        yield from _compared(change, ("PolicyDocument",), old, new, f"{role}: ")


def _role_names(definition: Mapping[str, Any] | None) -> list[str]:
    properties = {} if definition is None else definition["Properties"]
    named = [*properties.get("Roles", []), *([properties["RoleName"]] if "RoleName" in properties else [])]
    return [str(one["Ref"]) if isinstance(one, Mapping) and "Ref" in one else text_of(one) for one in named]


def _role_rights(assembly: Assembly, stack: str, role: str) -> list[Right]:
    resources = assembly[stack].resources if stack in assembly else {}
    inline = resources.get(role, {}).get("Properties", {}).get("Policies", [])
    documents = [one["PolicyDocument"] for one in inline]
    documents += [
        one["Properties"]["PolicyDocument"]
        for one in resources.values()
        if one["Type"] in ATTACHED and role in _role_names(one)
    ]
    return [right for document in documents for right in rights_of(document)]
