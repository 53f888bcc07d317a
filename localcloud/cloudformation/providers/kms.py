"""KMS keys and aliases."""

from __future__ import annotations

from typing import Any

from localcloud.cloudformation.providers.base.resource import (
    Create,
    Delete,
    Describe,
    Properties,
    Resource,
    ResourceApi,
    changed,
    error_codes,
)
from localcloud.cloudformation.providers.base.shapes import parse_bool
from localcloud.cloudformation.providers.base.tagging import TagCalls


class Key(Resource):
    """AWS::KMS::Key. As on AWS, deleting the resource schedules the key's deletion."""

    type_name = "AWS::KMS::Key"
    service = "kms"
    create_only = frozenset({"KeySpec", "KeyUsage", "MultiRegion", "Origin"})
    updatable = frozenset(
        {"KeyPolicy", "Description", "Enabled", "EnableKeyRotation", "RotationPeriodInDays", "Tags"}
        | {"PendingWindowInDays", "BypassPolicyLockoutSafetyCheck"}
    )
    set_after_create = frozenset({"Enabled", "EnableKeyRotation", "RotationPeriodInDays", "PendingWindowInDays"})
    parameter_names = {"KeyPolicy": "Policy"}
    defaults = {"Description": "", "Enabled": True, "EnableKeyRotation": False}
    create_call = Create("create_key", "KeyMetadata.KeyId")
    describe_call = Describe("describe_key", "KeyId", "KeyMetadata")
    not_found_codes = error_codes("NotFoundException", "KMSInvalidStateException")
    deleted_states = ("KeyState", frozenset({"PendingDeletion", "PendingReplicaDeletion"}))
    tag_calls = TagCalls(identity="KeyId")
    system_tags = False

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the policy, description, state and rotation."""
        if changed(old, new, "KeyPolicy"):
            policy = new.get("KeyPolicy") or default_policy(api)
            bypass = new.get("BypassPolicyLockoutSafetyCheck")
            api.call(
                "put_key_policy",
                KeyId=physical_id,
                PolicyName="default",
                Policy=policy,
                BypassPolicyLockoutSafetyCheck=bypass,
            )
        if changed(old, new, "Description"):
            api.call("update_key_description", KeyId=physical_id, Description=new.get("Description") or "")
        if changed(old, new, "EnableKeyRotation", "RotationPeriodInDays"):
            self._rotate(api, physical_id, old, new)
        if changed(old, new, "Enabled"):
            enabled = parse_bool(new.get("Enabled", True))
            api.call("enable_key" if enabled else "disable_key", KeyId=physical_id)

    def _rotate(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        if parse_bool(new.get("EnableKeyRotation", False)):
            days = new.get("RotationPeriodInDays")
            api.call("enable_key_rotation", KeyId=physical_id, RotationPeriodInDays=days)
        elif parse_bool(old.get("EnableKeyRotation", False)):
            api.call("disable_key_rotation", KeyId=physical_id)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN and the ID."""
        return {"Arn": found["Arn"], "KeyId": found["KeyId"]}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Schedule the key's deletion. KMS's default waiting period is 30 days."""
        window = properties.get("PendingWindowInDays")
        if self.find(api, physical_id, properties) is not None:
            api.call("schedule_key_deletion", KeyId=physical_id, PendingWindowInDays=window)


def default_policy(api: ResourceApi) -> dict[str, Any]:
    """Return KMS's default key policy, which gives the account full access."""
    root = api.arn("iam", "root", region=False)
    statement = {"Sid": "Enable IAM User Permissions", "Effect": "Allow", "Principal": {"AWS": root}}
    return {"Version": "2012-10-17", "Statement": [{**statement, "Action": "kms:*", "Resource": "*"}]}


class Alias(Resource):
    """AWS::KMS::Alias."""

    type_name = "AWS::KMS::Alias"
    service = "kms"
    create_only = frozenset({"AliasName"})
    updatable = frozenset({"TargetKeyId"})
    create_call = Create("create_alias")
    delete_call = Delete("delete_alias", "AliasName")
    not_found_codes = error_codes("NotFoundException")
    name_property = "AliasName"

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Assign the alias to another key."""
        if changed(old, new, "TargetKeyId"):
            api.call("update_alias", AliasName=physical_id, TargetKeyId=new["TargetKeyId"])

    def describe(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the alias from the list of all aliases, since no KMS call returns a single alias."""
        pages = api.client.get_paginator("list_aliases").paginate()
        aliases = (alias for page in pages for alias in page["Aliases"])
        return next((alias for alias in aliases if alias["AliasName"] == physical_id), None)


PROVIDERS = (Key(), Alias())
