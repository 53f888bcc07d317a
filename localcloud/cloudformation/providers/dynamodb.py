"""DynamoDB: tables."""

from __future__ import annotations

from typing import Any

from .resource import Create, Delete, Describe, Place, Properties, Resource, changed, codes
from .shapes import truth
from .tagging import TagCalls


class Table(Resource):
    """AWS::DynamoDB::Table; secondary indexes are made with the table only."""

    type_name = "AWS::DynamoDB::Table"
    service = "dynamodb"
    create_only = frozenset(
        {"TableName", "KeySchema", "AttributeDefinitions", "GlobalSecondaryIndexes", "LocalSecondaryIndexes"}
    )
    updatable = frozenset(
        {"BillingMode", "ProvisionedThroughput", "DeletionProtectionEnabled", "SSESpecification", "Tags"}
        | {"StreamSpecification", "PointInTimeRecoverySpecification", "TimeToLiveSpecification"}
    )
    afterwards = frozenset({"PointInTimeRecoverySpecification", "TimeToLiveSpecification"})
    defaults = {
        "BillingMode": "PROVISIONED",
        "DeletionProtectionEnabled": False,
        "SSESpecification": {"SSEEnabled": False},
        "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": False},
    }
    creates = Create("create_table")
    describes = Describe("describe_table", "TableName", "Table")
    deletes = Delete("delete_table", "TableName")
    gone = codes("ResourceNotFoundException")
    name_property = "TableName"
    name_length = 255
    tag_calls = TagCalls(identity="ResourceArn")
    system_tags = False
    ready_states = ("TableStatus", frozenset({"ACTIVE"}))
    gone_states = ("TableStatus", frozenset())

    def arguments(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return the table; the API wants encryption and stream switched on in so many words."""
        arguments = super().arguments(at, properties)
        if "SSESpecification" in arguments:
            names = {"SSEEnabled": "Enabled"}
            given = arguments["SSESpecification"]
            arguments["SSESpecification"] = {names.get(name, name): value for name, value in given.items()}
        if "StreamSpecification" in arguments:
            view = arguments["StreamSpecification"]
            arguments["StreamSpecification"] = {"StreamEnabled": view is not None, **(view or {})}
        return arguments

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Change the table; recovery and expiry have calls of their own."""
        names = ("BillingMode", "ProvisionedThroughput", "DeletionProtectionEnabled", "SSESpecification")
        settings = changed(old, new, *names, "StreamSpecification")
        if settings:
            at.call("update_table", TableName=physical_id, **self.arguments(at, settings))
            self.settle(at, physical_id, new)
        if changed(old, new, "PointInTimeRecoverySpecification"):
            recovery = new["PointInTimeRecoverySpecification"]
            at.call("update_continuous_backups", TableName=physical_id, PointInTimeRecoverySpecification=recovery)
        if changed(old, new, "TimeToLiveSpecification"):
            expiry = new.get("TimeToLiveSpecification") or {**old["TimeToLiveSpecification"], "Enabled": False}
            if truth(expiry["Enabled"]) or old.get("TimeToLiveSpecification"):
                at.call("update_time_to_live", TableName=physical_id, TimeToLiveSpecification=expiry)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARNs."""
        return {"Arn": found["TableArn"], "StreamArn": found.get("LatestStreamArn")}

    def tag_identity(self, at: Place, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return at.arn("dynamodb", f"table/{physical_id}")


PROVIDERS = (Table(),)
