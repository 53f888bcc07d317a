"""IAM permissions that a deploy broadens or narrows: policies of roles, users, groups and resources, and trust."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stacks.changes.effects.iam_permissions import UNREADABLE, Names, Permission, broadened, narrowed, permissions_of
from stacks.changes.findings import Direction, Finding
from stacks.changes.templates.template_set import PropertyPath, TemplateSet, resources_of_type
from stacks.changes.templates.values import text_of
from stacks.changes.updates.resources import ResourceChange

OWNERS: Mapping[str, tuple[str, str]] = {
    "AWS::IAM::Role": ("Roles", "RoleName"),
    "AWS::IAM::User": ("Users", "UserName"),
    "AWS::IAM::Group": ("Groups", "GroupName"),
}
"""Types that own policies, and the two properties of a policy that name its owners: as a list, or a single one."""
ATTACHED = ("AWS::IAM::Policy", "AWS::IAM::RolePolicy", "AWS::IAM::UserPolicy", "AWS::IAM::GroupPolicy")
"""Types of inline policies. Their permissions are compared per role, user and group."""
DOCUMENTS = ("PolicyDocument", "KeyPolicy", "ResourcePolicy", "RepositoryPolicyText", "FileSystemPolicy", "Policy")
"""Properties that contain a policy, in any resource type."""
COMPARED = (*ATTACHED, *OWNERS, "AWS::IAM::ManagedPolicy", "AWS::IAM::InstanceProfile", "AWS::IAM::OIDCProvider")
"""IAM types whose changes are evaluated by property. Other types (such as access keys) need a manual review."""
LAMBDA_PERMISSION = "AWS::Lambda::Permission"
INVOCATION = (
    "Action", "FunctionName", "Principal", "SourceArn", "SourceAccount", "EventSourceToken", "FunctionUrlAuthType",
    "InvokedViaFunctionUrl", "PrincipalOrgID",
)  # fmt: skip
"""The properties of a Lambda permission. Those after the principal are conditions."""
OF_NETWORK = ("AWS::EC2::VPCEndpoint",)
"""Types whose policies are included in the network findings."""


def iam_findings(before: TemplateSet, after: TemplateSet, changes: Sequence[ResourceChange]) -> list[Finding]:
    """Return the findings about permissions."""
    found: list[Finding] = []
    for change in changes:
        if change.type == "AWS::IAM::ManagedPolicy":
            found += _members(change)
        if change.type in OWNERS:
            found += _trust(change)
            found += _attachments(change)
            found += _boundary(change)
            if change.type != "AWS::IAM::Role" and change.action == "added":
                found += _not_compared(change)
        elif change.type == "AWS::IAM::ServiceLinkedRole":
            service = text_of(change.properties("after" if change.after else "before").get("AWSServiceName", ""))
            verb, direction = _appears(change)
            found.append(
                _finding(change, direction, ("AWSServiceName",), f"the service-linked role for {service} is {verb}")
            )
        elif change.type.startswith("AWS::IAM::") and change.type not in COMPARED:
            found += _not_compared(change)
        elif change.type not in (*ATTACHED, *OF_NETWORK, LAMBDA_PERMISSION):
            found += _own_policy(change)
    return [*found, *_invocations(before, after, changes), *_owners(before, after, changes)]


def _finding(change: ResourceChange, direction: Direction, path: PropertyPath, text: str) -> Finding:
    return Finding("iam", direction, change.stack, change.logical_id, path, text)


def _appears(change: ResourceChange) -> tuple[str, Direction]:
    return ("removed", "narrowed") if change.action == "removed" else ("added", "broadened")


def _texts(permissions: Sequence[Permission]) -> Iterator[tuple[str, str]]:
    """Yield the effect and text of each permission. Permissions that differ only in their action are combined."""
    grouped: dict[Permission, list[str]] = {}
    for one in permissions:
        key = one if one.action.is_excluded else replace(one, action=Names(()))
        grouped.setdefault(key, []).extend(one.action.patterns)
    for one, actions in grouped.items():
        patterns = tuple(dict.fromkeys(actions))
        yield one.effect, str(replace(one, action=Names(patterns, one.action.is_excluded)))


def compare(old: Sequence[Permission], new: Sequence[Permission]) -> Iterator[tuple[Direction, str]]:
    """Yield the direction and text of each permission that only one of the two sets grants."""
    verbs = {"Allow": "allows", "Deny": "no longer denies", UNREADABLE: "cannot be compared:"}
    for effect, text in _texts(broadened(old, new)):
        yield "broadened", f"{verbs[effect]} {text}"
    for effect, text in _texts(narrowed(old, new)):
        yield "narrowed", f"no longer allows {text}" if effect == "Allow" else f"denies {text}"


def _compare(
    change: ResourceChange, path: PropertyPath, old: Sequence[Permission], new: Sequence[Permission], prefix: str = ""
) -> Iterator[Finding]:
    for direction, text in compare(old, new):
        yield _finding(change, direction, path, prefix + text)


def _not_compared(change: ResourceChange) -> Iterator[Finding]:
    if change.action == "removed":
        yield _finding(change, "narrowed", (), f"the {change.type} is removed")
        return
    for path in [one.path for one in change.differences] or [()]:
        yield _finding(change, "broadened", path, f"the {change.type} is {change.action}: review its permissions")


def _trust(change: ResourceChange) -> Iterator[Finding]:
    path = "AssumeRolePolicyDocument"
    old, new = (permissions_of(change.properties(side).get(path)) for side in ("before", "after"))
    yield from _compare(change, (path,), old, new, "trust policy: ")


def _attachments(change: ResourceChange) -> Iterator[Finding]:
    path = "ManagedPolicyArns"
    old, new = (_texts_of(change.properties(side).get(path)) for side in ("before", "after"))
    for name in new:
        if name not in old:
            yield _finding(change, "broadened", (path,), f"managed policy {name} is attached")
    for name in old:
        if name not in new:
            yield _finding(change, "narrowed", (path,), f"managed policy {name} is detached")


def _members(change: ResourceChange) -> Iterator[Finding]:
    """Yield changes to the roles, users and groups that a managed policy is attached to."""
    for path, _ in OWNERS.values():
        old, new = (_texts_of(change.properties(side).get(path)) for side in ("before", "after"))
        yield from (
            _finding(change, "broadened", (path,), f"the policy is attached to {name}")
            for name in new
            if name not in old
        )
        yield from (
            _finding(change, "narrowed", (path,), f"the policy is detached from {name}")
            for name in old
            if name not in new
        )


def _texts_of(value: Any) -> list[str]:
    return [] if value is None else [text_of(one) for one in (value if isinstance(value, list) else [value])]


def _boundary(change: ResourceChange) -> Iterator[Finding]:
    path = "PermissionsBoundary"
    old, new = (change.properties(side).get(path) for side in ("before", "after"))
    if change.before is None or change.after is None or old == new:
        return
    if new is None:
        yield _finding(change, "broadened", (path,), f"permissions boundary {text_of(old)} is removed")
    elif old is None:
        yield _finding(change, "narrowed", (path,), f"permissions boundary {text_of(new)} is set")
    else:
        text = f"permissions boundary changes: {text_of(old)} -> {text_of(new)}; compare both policies"
        yield _finding(change, "broadened", (path,), text)


def _invocations(before: TemplateSet, after: TemplateSet, changes: Sequence[ResourceChange]) -> Iterator[Finding]:
    """Yield changes to the permissions to invoke functions.

    All permissions are compared together, so a new logical id alone is not a change.
    """
    old, new = (
        [permission for _, _, one in resources_of_type(side, LAMBDA_PERMISSION) for permission in _invocation(one)]
        for side in (before, after)
    )
    for change in changes:
        if change.type == LAMBDA_PERMISSION:
            removed, added = (_invocation(one) if one is not None else [] for one in (change.before, change.after))
            for direction, text in (*compare(old, [*old, *added]), *compare([*new, *removed], new)):
                yield _finding(change, direction, (), text)


def _invocation(permission: Mapping[str, Any]) -> list[Permission]:
    properties = permission.get("Properties", {})
    conditions = frozenset(
        ("equals", name, frozenset([text_of(value)]))
        for name, value in properties.items()
        if name not in INVOCATION[:3]
    )
    names = (Names((text_of(properties.get(name, "*")),)) for name in INVOCATION[:3])
    action, function, principal = names
    return [Permission("Allow", action, function, principal, conditions)]


def _own_policy(change: ResourceChange) -> Iterator[Finding]:
    for name in DOCUMENTS:
        old, new = (permissions_of(change.properties(side).get(name), "") for side in ("before", "after"))
        if old == new:
            continue
        prefix = "managed policy: " if change.type == "AWS::IAM::ManagedPolicy" else ""
        yield from _compare(change, (name,), old, new, prefix)


Owner = tuple[str, str, str]
"""A policy's stack, its owner's kind ("Roles"), and the owner's name or reference as text."""


def _owners(before: TemplateSet, after: TemplateSet, changes: Sequence[ResourceChange]) -> Iterator[Finding]:
    """Yield changes to the permissions of each role, user and group.

    All policies of an owner are combined because statements can move between them.
    """
    touched: dict[Owner, ResourceChange] = {}
    for change in changes:
        for definition in (change.before, change.after):
            for owner in _owners_of(change.stack, change.logical_id, definition):
                # Report the changed policy, if there is one, instead of the owner.
                if change.type in ATTACHED or owner not in touched:
                    touched[owner] = change
    for owner, change in touched.items():
        old, new = _owner_permissions(before, owner), _owner_permissions(after, owner)
        yield from _compare(change, ("PolicyDocument",), old, new, f"{owner[2].strip('${}')}: ")


def _owners_of(stack: str, logical_id: str, definition: Mapping[str, Any] | None) -> Iterator[Owner]:
    """Yield the owners of a resource's policies. A reference never equals a name: the referenced name is unknown."""
    if definition is None:
        return
    if definition["Type"] in OWNERS:
        yield stack, OWNERS[definition["Type"]][0], f"${{{logical_id}}}"
    if definition["Type"] in ATTACHED:
        properties = definition.get("Properties", {})
        for several, one in OWNERS.values():
            names = [*_texts_of(properties.get(several)), *_texts_of(properties.get(one))]
            yield from ((stack, several, name) for name in names)


def _owner_permissions(templates: TemplateSet, owner: Owner) -> list[Permission]:
    resources = templates[owner[0]].resources if owner[0] in templates else {}
    found: list[Permission] = []
    for logical_id, definition in resources.items():
        if owner not in _owners_of(owner[0], logical_id, definition):
            continue
        properties = definition.get("Properties", {})
        if definition["Type"] in ATTACHED:
            found += permissions_of(properties.get("PolicyDocument"))
        else:
            policies = properties.get("Policies", [])
            for one in policies if isinstance(policies, list) else [policies]:
                found += permissions_of(one.get("PolicyDocument", one) if isinstance(one, Mapping) else one)
    return found
