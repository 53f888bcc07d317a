"""Data Lifecycle Manager: scheduled snapshots."""

from __future__ import annotations

from typing import Any

from .resource import Create, Delete, Describe, Place, Properties, Resource, changed, codes
from .tagging import TagCalls


class LifecyclePolicy(Resource):
    """AWS::DLM::LifecyclePolicy, custom policies; default policies are refused."""

    type_name = "AWS::DLM::LifecyclePolicy"
    service = "dlm"
    updatable = frozenset({"Description", "ExecutionRoleArn", "PolicyDetails", "State", "Tags"})
    undroppable = frozenset({"Description", "ExecutionRoleArn", "PolicyDetails", "State"})
    creates = Create("create_lifecycle_policy", "PolicyId")
    describes = Describe("get_lifecycle_policy", "PolicyId", "Policy")
    deletes = Delete("delete_lifecycle_policy", "PolicyId")
    gone = codes("ResourceNotFoundException")
    tag_calls = TagCalls("ResourceArn")

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Change what differs."""
        if settings := changed(old, new, *(self.updatable - {"Tags"})):
            at.call("update_lifecycle_policy", PolicyId=physical_id, **settings)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return id and ARN."""
        return {"PolicyId": found["PolicyId"], "Arn": found["PolicyArn"]}

    def tag_identity(self, at: Place, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return at.arn("dlm", f"policy/{physical_id}")


PROVIDERS = (LifecyclePolicy(),)
