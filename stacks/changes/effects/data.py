"""Data that a deploy deletes, makes unreadable or leaves behind, in buckets, keys, volumes, file systems and logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

from stacks.changes.effects.lifecycle import changed_rules
from stacks.changes.findings import Direction, Finding
from stacks.changes.templates.template_set import PropertyPath, TemplateSet
from stacks.changes.templates.values import mapping, number, text_of
from stacks.changes.updates.differences import MISSING, Difference
from stacks.changes.updates.resources import ResourceChange

STATEFUL: Mapping[str, str] = {
    "AWS::S3::Bucket": "bucket",
    "AWS::KMS::Key": "encryption key",
    "AWS::EC2::Volume": "volume",
    "AWS::FSx::FileSystem": "file system",
    "AWS::ECR::Repository": "image repository",
    "AWS::Logs::LogGroup": "log group",
}
"""Resource types whose data cannot be recreated, and their names in the review."""
STRENGTH: Mapping[str, int] = {"Delete": 0, "Snapshot": 1, "RetainExceptOnCreate": 2, "Retain": 2}
"""Deletion policies, ordered by how much of a deleted resource remains.

RetainExceptOnCreate deletes a resource only if the operation that creates it is rolled back. Source (2026-11):
https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-deletionpolicy.html
"""
KEY_PROPERTIES = ("KmsKeyId", "KMSMasterKeyID", "KmsMasterKeyId", "KmsKeyArn")
RETENTION: Mapping[tuple[str, str], str] = {
    ("AWS::Logs::LogGroup", "RetentionInDays"): "log retention in days",
    ("AWS::DLM::LifecyclePolicy", "Count"): "number of retained snapshots",
    ("AWS::KMS::Key", "PendingWindowInDays"): "days during which a key deletion can be cancelled",
}
"""Descriptions of retention settings, by resource type and innermost property."""


def data_findings(before: TemplateSet, after: TemplateSet, changes: Sequence[ResourceChange]) -> list[Finding]:
    """Return the findings about data."""
    found = [one for change in changes for one in _of_change(change)]
    return found + list(_protection(before, after))


def _finding(change: ResourceChange, path: PropertyPath, text: str, direction: Direction = "at risk") -> Finding:
    return Finding("data", direction, change.stack, change.logical_id, path, text)


def _of_change(change: ResourceChange) -> Iterator[Finding]:
    kind = STATEFUL.get(change.type)
    if kind is not None and change.action in ("replaced", "removed"):
        yield _lost(change, kind)
        return
    if change.before is None or change.after is None:
        return
    if kind is not None and change.action == "not supported":
        paths = [one.path for one in change.differences if one.effect == "not supported"]
        names = ", ".join("/".join(path) for path in paths) or "the type"
        text = f"{names} cannot be changed on the existing {kind}, and a new {kind} would be empty"
        yield _finding(change, paths[0] if paths else (), text)
    for one in change.differences:
        yield from _of_difference(change, one)
    if change.type == "AWS::S3::Bucket":
        yield from _expirations(change)


def _lost(change: ResourceChange, kind: str) -> Finding:
    policy_name = "UpdateReplacePolicy" if change.action == "replaced" else "DeletionPolicy"
    # When a resource is replaced, the policy in the new template applies to the old resource.
    definition = change.after if change.action == "replaced" else change.before
    policy = text_of((definition or {}).get(policy_name, "Delete"))
    outcome = {
        "Delete": "its data is deleted",
        "Snapshot": "a snapshot remains",
    }.get(policy, "the old one remains in the account with its data, outside the stack")
    successor = "; the new one is empty" if change.action == "replaced" else ""
    causes = [one.path for one in change.differences if one.effect == "replaces"]
    text = f"the {kind} is {change.action} ({policy_name} {policy}): {outcome}{successor}"
    return _finding(change, causes[0] if causes else (), text)


def _of_difference(change: ResourceChange, one: Difference) -> Iterator[Finding]:
    name = next((part for part in reversed(one.path) if not part.isdigit()), "")
    if name in ("DeletionPolicy", "UpdateReplacePolicy") and change.type in STATEFUL:
        was, becomes = (text_of(value) if value is not MISSING else "Delete" for value in (one.before, one.after))
        # Treat an unknown old policy as the strongest, and an unknown new policy as the weakest.
        before, after = STRENGTH.get(was, inf), STRENGTH.get(becomes, -1)
        if after < before:
            yield _finding(change, one.path, f"{name} is weaker: {was} -> {becomes}")
        else:
            comparison = "stronger" if after > before else "as strong"
            yield _finding(change, one.path, f"{name} is {comparison}: {was} -> {becomes}", "kept")
        return
    if name in KEY_PROPERTIES and (change.type in STATEFUL or change.type == "AWS::SNS::Topic"):
        yield from _other_key(change, one)
    elif (one.path[0] == "BucketEncryption" and one.after is MISSING) or _ends(one, "Encrypted"):
        yield _finding(change, one.path, "encryption is removed")
    elif (change.type, name) in RETENTION or name == "RetainRule":
        yield from _retention(change, one, RETENTION.get((change.type, name), "number of retained snapshots"))
    elif one.path[0] == "VersioningConfiguration" and _status(one.before) != "" and _status(one.after) != "Enabled":
        yield _finding(change, one.path, "versioning is turned off: overwritten and deleted objects are no longer kept")
    elif one.path[0] == "ObjectLockConfiguration":
        yield _finding(change, one.path, "the object lock changes")
    elif change.type == "AWS::KMS::Key" and name == "Enabled" and _text_after(one) != "true":
        yield _finding(change, one.path, "the key is disabled: data encrypted with it becomes unreadable")


def _status(value: Any) -> str:
    """Return the status of versioning as text, which is empty if versioning was never enabled."""
    return "" if value is MISSING else text_of(mapping(value).get("Status", value)).replace("Suspended", "")


def _text_after(one: Difference) -> str:
    """Return the new value as text. An unset property is treated as true."""
    return "true" if one.after is MISSING else text_of(one.after)


def _ends(one: Difference, name: str) -> bool:
    """Return True if a property changes from true to any other value."""
    return one.path[-1] == name and text_of(one.before) == "true" and text_of(one.after) != "true"


def _other_key(change: ResourceChange, one: Difference) -> Iterator[Finding]:
    if one.via is not None:
        yield _finding(change, one.path, f"key {one.via} is replaced: existing data stays encrypted with the old key")
    elif one.before is MISSING:
        yield _finding(change, one.path, f"new data is encrypted with {text_of(one.after)}", "kept")
    elif one.after is MISSING:
        yield _finding(change, one.path, "new data is no longer encrypted with one of the deployment's keys")
    else:
        yield _finding(change, one.path, f"the encryption key changes: {text_of(one.before)} -> {text_of(one.after)}")


def _retention(change: ResourceChange, one: Difference, name: str) -> Iterator[Finding]:
    was, becomes = (_number(value) for value in (one.before, one.after))
    if was is None or becomes is None:
        values = " -> ".join("unlimited" if value is MISSING else text_of(value) for value in (one.before, one.after))
        yield _finding(change, one.path, f"{name} cannot be compared: {values}")
        return
    text = f"{name}: {_retention_text(was)} -> {_retention_text(becomes)}"
    if becomes < was:
        yield _finding(change, one.path, f"{text}: older data is deleted")
    else:
        yield _finding(change, one.path, text, "kept")


def _number(value: Any) -> float | None:
    """Return a retention period as a number: infinity if it is not set, and None if it is unknown."""
    return inf if value is MISSING else number(value)


def _retention_text(value: float) -> str:
    return "unlimited" if value == inf else f"{value:g}"


def _expirations(change: ResourceChange) -> Iterator[Finding]:
    """Yield changes to a bucket's lifecycle rules."""
    for is_risk, text in changed_rules(change.properties("before"), change.properties("after")):
        yield _finding(change, ("LifecycleConfiguration",), text, "at risk" if is_risk else "kept")


def _protection(before: TemplateSet, after: TemplateSet) -> Iterator[Finding]:
    """Yield changes to termination protection on stacks that hold data."""
    for stack_id, stack in after.items():
        old = before.get(stack_id)
        if old is None or old.is_protected is None or stack.is_protected is None:
            continue
        holds_data = any(one["Type"] in STATEFUL for one in stack.resources.values())
        if old.is_protected and not stack.is_protected and holds_data:
            text = "termination protection is turned off: the stack can be deleted"
            yield Finding("data", "at risk", stack_id, "", ("TerminationProtection",), text)
        elif stack.is_protected and not old.is_protected and holds_data:
            text = "termination protection starts"
            yield Finding("data", "kept", stack_id, "", ("TerminationProtection",), text)
