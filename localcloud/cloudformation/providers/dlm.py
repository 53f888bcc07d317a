"""Data Lifecycle Manager: scheduled snapshots."""

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
from localcloud.cloudformation.providers.base.tagging import TagCalls


class LifecyclePolicy(Resource):
    """AWS::DLM::LifecyclePolicy. Default policies are not emulated."""

    type_name = "AWS::DLM::LifecyclePolicy"
    service = "dlm"
    updatable = frozenset({"Description", "ExecutionRoleArn", "PolicyDetails", "State", "Tags"})
    unremovable = frozenset({"Description", "ExecutionRoleArn", "PolicyDetails", "State"})
    create_call = Create("create_lifecycle_policy", "PolicyId")
    describe_call = Describe("get_lifecycle_policy", "PolicyId", "Policy")
    delete_call = Delete("delete_lifecycle_policy", "PolicyId")
    not_found_codes = error_codes("ResourceNotFoundException")
    tag_calls = TagCalls("ResourceArn")

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the changed settings."""
        if settings := changed(old, new, *(self.updatable - {"Tags"})):
            api.call("update_lifecycle_policy", PolicyId=physical_id, **settings)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID and the ARN."""
        return {"PolicyId": found["PolicyId"], "Arn": found["PolicyArn"]}

    def tag_identity(self, api: ResourceApi, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return api.arn("dlm", f"policy/{physical_id}")


PROVIDERS = (LifecyclePolicy(),)
