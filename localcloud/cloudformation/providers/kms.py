"""KMS: keys and their aliases."""

from __future__ import annotations

from typing import Any

from .resource import Create, Delete, Describe, Place, Properties, Resource, changed, codes
from .shapes import truth
from .tagging import TagCalls


class Key(Resource):
    """AWS::KMS::Key; deleting it schedules the deletion, as on AWS."""

    type_name = "AWS::KMS::Key"
    service = "kms"
    create_only = frozenset({"KeySpec", "KeyUsage", "MultiRegion", "Origin"})
    updatable = frozenset(
        {"KeyPolicy", "Description", "Enabled", "EnableKeyRotation", "RotationPeriodInDays", "Tags"}
        | {"PendingWindowInDays", "BypassPolicyLockoutSafetyCheck"}
    )
    afterwards = frozenset({"Enabled", "EnableKeyRotation", "RotationPeriodInDays", "PendingWindowInDays"})
    renames = {"KeyPolicy": "Policy"}
    defaults = {"Description": "", "Enabled": True, "EnableKeyRotation": False}
    creates = Create("create_key", "KeyMetadata.KeyId")
    describes = Describe("describe_key", "KeyId", "KeyMetadata")
    gone = codes("NotFoundException", "KMSInvalidStateException")
    gone_states = ("KeyState", frozenset({"PendingDeletion", "PendingReplicaDeletion"}))
    tag_calls = TagCalls(identity="KeyId")
    system_tags = False

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Change policy, description, state and rotation."""
        if changed(old, new, "KeyPolicy"):
            policy = new.get("KeyPolicy") or default_policy(at)
            bypass = new.get("BypassPolicyLockoutSafetyCheck")
            at.call(
                "put_key_policy",
                KeyId=physical_id,
                PolicyName="default",
                Policy=policy,
                BypassPolicyLockoutSafetyCheck=bypass,
            )
        if changed(old, new, "Description"):
            at.call("update_key_description", KeyId=physical_id, Description=new.get("Description") or "")
        if changed(old, new, "EnableKeyRotation", "RotationPeriodInDays"):
            self._rotate(at, physical_id, old, new)
        if changed(old, new, "Enabled"):
            enabled = truth(new.get("Enabled", True))
            at.call("enable_key" if enabled else "disable_key", KeyId=physical_id)

    def _rotate(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        if truth(new.get("EnableKeyRotation", False)):
            days = new.get("RotationPeriodInDays")
            at.call("enable_key_rotation", KeyId=physical_id, RotationPeriodInDays=days)
        elif truth(old.get("EnableKeyRotation", False)):
            at.call("disable_key_rotation", KeyId=physical_id)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return ARN and id."""
        return {"Arn": found["Arn"], "KeyId": found["KeyId"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Schedule the deletion; 30 days is KMS's own default."""
        window = properties.get("PendingWindowInDays")
        if self.found(at, physical_id, properties) is not None:
            at.call("schedule_key_deletion", KeyId=physical_id, PendingWindowInDays=window)


def default_policy(at: Place) -> dict[str, Any]:
    """Return the policy that KMS gives a key without one: the account may do everything."""
    root = at.arn("iam", "root", region=False)
    statement = {"Sid": "Enable IAM User Permissions", "Effect": "Allow", "Principal": {"AWS": root}}
    return {"Version": "2012-10-17", "Statement": [{**statement, "Action": "kms:*", "Resource": "*"}]}


class Alias(Resource):
    """AWS::KMS::Alias."""

    type_name = "AWS::KMS::Alias"
    service = "kms"
    create_only = frozenset({"AliasName"})
    updatable = frozenset({"TargetKeyId"})
    creates = Create("create_alias")
    deletes = Delete("delete_alias", "AliasName")
    gone = codes("NotFoundException")
    name_property = "AliasName"

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Point the alias at another key."""
        if changed(old, new, "TargetKeyId"):
            at.call("update_alias", AliasName=physical_id, TargetKeyId=new["TargetKeyId"])

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Find the alias among all; there is no call for one."""
        pages = at.client.get_paginator("list_aliases").paginate()
        aliases = (alias for page in pages for alias in page["Aliases"])
        return next((alias for alias in aliases if alias["AliasName"] == physical_id), None)


PROVIDERS = (Key(), Alias())
