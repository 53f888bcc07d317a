"""Data that a deploy can lose, hide or leave behind: buckets, keys, volumes, file systems, logs and snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stacks.changes.assembly import Assembly
from stacks.changes.differences import MISSING, Difference
from stacks.changes.findings import Direction, Finding
from stacks.changes.resources import ResourceChange
from stacks.changes.schemas import PropertyPath
from stacks.changes.texts import text_of

STATEFUL: Mapping[str, str] = {
    "AWS::S3::Bucket": "bucket",
    "AWS::KMS::Key": "encryption key",
    "AWS::EC2::Volume": "volume",
    "AWS::FSx::FileSystem": "file system",
    "AWS::Logs::LogGroup": "log group",
}
"""Types that hold what cannot be made anew, in words."""
STRENGTH = ("Delete", "RetainExceptOnCreate", "Snapshot", "Retain")
"""Deletion policies, the weakest first."""
KEY_PROPERTIES = ("KmsKeyId", "KMSMasterKeyID", "KmsMasterKeyId", "KmsKeyArn")
SHORTENED: Mapping[tuple[str, str], str] = {
    ("AWS::Logs::LogGroup", "RetentionInDays"): "days that logs are kept",
    ("AWS::DLM::LifecyclePolicy", "Count"): "snapshots that are kept",
    ("AWS::KMS::Key", "PendingWindowInDays"): "days in which a deletion of the key can be taken back",
}
"""Numbers that say how long or how much is kept, by type and innermost property."""


def data_findings(before: Assembly, after: Assembly, changes: Sequence[ResourceChange]) -> list[Finding]:
    """Return what a deploy does to data."""
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
        told = ", ".join("/".join(path) for path in paths) or "its type"
        yield _finding(change, paths[0] if paths else (), f"the {kind} cannot change {told}: a new one would be empty")
    for one in change.differences:
        yield from _of_difference(change, one)
    if change.type == "AWS::S3::Bucket":
        yield from _expirations(change)


def _lost(change: ResourceChange, kind: str) -> Finding:
    policy_name = "UpdateReplacePolicy" if change.action == "replaced" else "DeletionPolicy"
    # The new template's policy decides about the old resource of a replacement.
    definition = change.after if change.action == "replaced" else change.before
    policy = (definition or {}).get(policy_name, "Delete")
    fate = {
        "Delete": "what it holds is deleted",
        "Snapshot": "a snapshot of it stays",
    }.get(policy, "the old one stays in the account, with what it holds, outside the stack")
    successor = "; the new one is empty" if change.action == "replaced" else ""
    causes = [one.path for one in change.differences if one.effect == "replaces"]
    text = f"the {kind} is {change.action} ({policy_name} {policy}): {fate}{successor}"
    return _finding(change, causes[0] if causes else (), text)


def _of_difference(change: ResourceChange, one: Difference) -> Iterator[Finding]:
    name = next((part for part in reversed(one.path) if not part.isdigit()), "")
    if name in ("DeletionPolicy", "UpdateReplacePolicy") and change.type in STATEFUL:
        was, becomes = (str(value) if value is not MISSING else "Delete" for value in (one.before, one.after))
        if STRENGTH.index(becomes) < STRENGTH.index(was):
            yield _finding(change, one.path, f"{name} is weaker: {was} becomes {becomes}")
        else:
            yield _finding(change, one.path, f"{name} is stronger: {was} becomes {becomes}", "kept")
        return
    if name in KEY_PROPERTIES and (change.type in STATEFUL or change.type == "AWS::SNS::Topic"):
        yield from _other_key(change, one)
    elif (one.path[0] == "BucketEncryption" and one.after is MISSING) or _ends(one, "Encrypted"):
        yield _finding(change, one.path, "is no longer encrypted")
    elif (change.type, name) in SHORTENED or name == "RetainRule":
        yield from _shorter(change, one, SHORTENED.get((change.type, name), "snapshots that are kept"))
    elif one.path[0] == "VersioningConfiguration" and one.before == "Enabled":
        yield _finding(change, one.path, "no longer keeps what is overwritten or deleted: versioning ends")
    elif one.path[0] == "ObjectLockConfiguration":
        yield _finding(change, one.path, "its object lock changes")
    elif change.type == "AWS::KMS::Key" and (name, text_of(one.after)) == ("Enabled", "false"):
        yield _finding(change, one.path, "the key is disabled: nothing that it encrypts can be read")


def _ends(one: Difference, name: str) -> bool:
    """Tell whether a property that was true is no longer."""
    return one.path[-1] == name and text_of(one.before) == "true" and text_of(one.after) != "true"


def _other_key(change: ResourceChange, one: Difference) -> Iterator[Finding]:
    if one.via is not None:
        yield _finding(change, one.path, f"its key {one.via} is replaced: what is there keeps the old key")
    elif one.before is MISSING:
        yield _finding(change, one.path, f"is encrypted with {text_of(one.after)} from now on", "kept")
    elif one.after is MISSING:
        yield _finding(change, one.path, "is no longer encrypted with a key of the deployment")
    else:
        yield _finding(change, one.path, f"the key {text_of(one.before)} becomes {text_of(one.after)}")


def _shorter(change: ResourceChange, one: Difference, what: str) -> Iterator[Finding]:
    was, becomes = (_number(value) for value in (one.before, one.after))
    if becomes < was:
        yield _finding(change, one.path, f"{what}: {_told(was)} becomes {_told(becomes)}, the older go")
    else:
        yield _finding(change, one.path, f"{what}: {_told(was)} becomes {_told(becomes)}", "kept")


def _number(value: Any) -> float:
    """Return a retention as a number; what is not said is kept for ever."""
    return float(value) if isinstance(value, (int, float, str)) else float("inf")


def _told(value: float) -> str:
    return "for ever" if value == float("inf") else f"{value:g}"


def _expirations(change: ResourceChange) -> Iterator[Finding]:
    """Yield what a bucket deletes by itself sooner than it did."""
    old, new = (_rules(change.properties(side)) for side in ("before", "after"))
    for name in sorted(old.keys() | new.keys()):
        was, becomes = old.get(name, float("inf")), new.get(name, float("inf"))
        if was == becomes:
            continue
        which = f"objects under {name[0]}/" if name[0] else "objects"
        text = f"{which} are deleted {_after_days(becomes)}; before, {_after_days(was)}"
        yield _finding(change, ("LifecycleConfiguration",), text, "at risk" if becomes < was else "kept")


def _after_days(days: float) -> str:
    return "never" if days == float("inf") else f"after {days:g} days"


def _rules(properties: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    found = {}
    for rule in properties.get("LifecycleConfiguration", {}).get("Rules", []):
        if rule.get("Status") != "Enabled":
            continue
        for name in ("ExpirationInDays", "NoncurrentVersionExpirationInDays"):
            if name in rule:
                found[rule.get("Prefix", "").rstrip("/"), name] = _number(rule[name])
    return found


def _protection(before: Assembly, after: Assembly) -> Iterator[Finding]:
    """Yield the second key that is given up: a stack with data that may be deleted."""
    for stack_id, stack in after.items():
        old = before.get(stack_id)
        if old is None or old.is_protected is None or stack.is_protected is None:
            continue
        holds_data = any(one["Type"] in STATEFUL for one in stack.resources.values())
        if old.is_protected and not stack.is_protected and holds_data:
            text = "the stack may be deleted from now on: termination protection ends"
            yield Finding("data", "at risk", stack_id, "", ("TerminationProtection",), text)
        elif stack.is_protected and not old.is_protected and holds_data:
            text = "the stack is protected against deletion from now on"
            yield Finding("data", "kept", stack_id, "", ("TerminationProtection",), text)
