"""CloudWatch Logs: groups, metric filters, resource policies."""

from __future__ import annotations

from typing import Any

from ..provider import ResourceFailure
from .resource import Create, Delete, Place, Properties, PutResource, Resource, changed, codes
from .tagging import TagCalls


class LogGroup(Resource):
    """AWS::Logs::LogGroup."""

    type_name = "AWS::Logs::LogGroup"
    service = "logs"
    create_only = frozenset({"LogGroupName", "KmsKeyId", "LogGroupClass"})
    updatable = frozenset({"RetentionInDays", "Tags"})
    afterwards = frozenset({"RetentionInDays"})
    creates = Create("create_log_group")
    deletes = Delete("delete_log_group", "logGroupName")
    gone = codes("ResourceNotFoundException")
    name_property = "LogGroupName"
    name_length = 512
    tag_calls = TagCalls(identity="resourceArn")

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Set or lift the retention."""
        if not changed(old, new, "RetentionInDays"):
            return
        days = new.get("RetentionInDays")
        if days is None:
            at.call("delete_retention_policy", LogGroupName=physical_id)
        else:
            at.call("put_retention_policy", LogGroupName=physical_id, RetentionInDays=days)

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Find the group; the call answers with all whose names begin so."""
        groups = at.call("describe_log_groups", LogGroupNamePrefix=physical_id)["logGroups"]
        return next((group for group in groups if group["logGroupName"] == physical_id), None)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN, with `:*` as CloudFormation has it."""
        return {"Arn": f"{self.tag_identity(at, found['logGroupName'], properties)}:*"}

    def tag_identity(self, at: Place, physical_id: str, properties: Properties) -> str:
        """Return the ARN without `:*`."""
        return at.arn("logs", f"log-group:{physical_id}")


class MetricFilter(PutResource):
    """AWS::Logs::MetricFilter."""

    type_name = "AWS::Logs::MetricFilter"
    service = "logs"
    create_only = frozenset({"FilterName", "LogGroupName"})
    updatable = frozenset({"FilterPattern", "MetricTransformations"})
    creates = Create("put_metric_filter")
    gone = codes("ResourceNotFoundException")
    name_property = "FilterName"
    name_length = 512

    def arguments(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return the filter; the API takes dimensions as a map."""
        transformations = [
            {
                name: {pair["Key"]: pair["Value"] for pair in value} if name == "Dimensions" else value
                for name, value in transformation.items()
            }
            for transformation in properties["MetricTransformations"]
        ]
        return {**properties, "MetricTransformations": transformations}

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Put the filter again, after deleting the old one: the local Logs would keep both under one name."""
        if changed(old, new, *self.updatable):
            self.remove(at, physical_id, old)
            at.call("put_metric_filter", **self.arguments(at, new))

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Find the filter in its group."""
        where = {"LogGroupName": properties["LogGroupName"], "FilterNamePrefix": physical_id}
        filters = at.call("describe_metric_filters", **where)["metricFilters"]
        return next((item for item in filters if item["filterName"] == physical_id), None)

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Delete the filter."""
        at.call("delete_metric_filter", LogGroupName=properties["LogGroupName"], FilterName=physical_id)


class LogsResourcePolicy(PutResource):
    """AWS::Logs::ResourcePolicy."""

    type_name = "AWS::Logs::ResourcePolicy"
    service = "logs"
    create_only = frozenset({"PolicyName"})
    updatable = frozenset({"PolicyDocument"})
    creates = Create("put_resource_policy")
    deletes = Delete("delete_resource_policy", "policyName")
    gone = codes("ResourceNotFoundException")
    name_property = "PolicyName"

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Find the policy among all; there is no call for one."""
        response = at.call("describe_resource_policies")
        if response.get("nextToken"):
            raise ResourceFailure(f"{self.type_name}: more resource policies than an account may have")
        policies = response["resourcePolicies"]
        return next((policy for policy in policies if policy["policyName"] == physical_id), None)


PROVIDERS = (LogGroup(), MetricFilter(), LogsResourcePolicy())
