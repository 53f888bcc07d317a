"""CloudWatch Logs: log groups and metric filters."""

from __future__ import annotations

from typing import Any

from localcloud.cloudformation.providers.base.resource import (
    Create,
    Delete,
    Properties,
    PutResource,
    Resource,
    ResourceApi,
    changed,
    error_codes,
)
from localcloud.cloudformation.providers.base.tagging import TagCalls


class LogGroup(Resource):
    """AWS::Logs::LogGroup."""

    type_name = "AWS::Logs::LogGroup"
    service = "logs"
    create_only = frozenset({"LogGroupName", "KmsKeyId", "LogGroupClass"})
    updatable = frozenset({"RetentionInDays", "Tags"})
    set_after_create = frozenset({"RetentionInDays"})
    create_call = Create("create_log_group")
    delete_call = Delete("delete_log_group", "logGroupName")
    not_found_codes = error_codes("ResourceNotFoundException")
    name_property = "LogGroupName"
    name_length = 512
    tag_calls = TagCalls(identity="resourceArn")

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Set or remove the retention period."""
        if not changed(old, new, "RetentionInDays"):
            return
        days = new.get("RetentionInDays")
        if days is None:
            api.call("delete_retention_policy", LogGroupName=physical_id)
        else:
            api.call("put_retention_policy", LogGroupName=physical_id, RetentionInDays=days)

    def describe(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the group with exactly this name. The call returns all groups whose names start with it."""
        groups = api.call("describe_log_groups", LogGroupNamePrefix=physical_id)["logGroups"]
        return next((group for group in groups if group["logGroupName"] == physical_id), None)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN with the suffix `:*`, as CloudFormation does."""
        return {"Arn": f"{self.tag_identity(api, found['logGroupName'], properties)}:*"}

    def tag_identity(self, api: ResourceApi, physical_id: str, properties: Properties) -> str:
        """Return the ARN without the suffix `:*`."""
        return api.arn("logs", f"log-group:{physical_id}")


class MetricFilter(PutResource):
    """AWS::Logs::MetricFilter."""

    type_name = "AWS::Logs::MetricFilter"
    service = "logs"
    create_only = frozenset({"FilterName", "LogGroupName"})
    updatable = frozenset({"FilterPattern", "MetricTransformations"})
    create_call = Create("put_metric_filter")
    not_found_codes = error_codes("ResourceNotFoundException")
    name_property = "FilterName"
    name_length = 512

    def arguments(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Return the filter's settings, with dimensions as a map."""
        transformations = [
            {
                name: {pair["Key"]: pair["Value"] for pair in value} if name == "Dimensions" else value
                for name, value in transformation.items()
            }
            for transformation in properties["MetricTransformations"]
        ]
        return {**properties, "MetricTransformations": transformations}

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Delete the old filter and put the new one, since moto would otherwise keep both under the same name."""
        if changed(old, new, *self.updatable):
            self.call_delete(api, physical_id, old)
            api.call("put_metric_filter", **self.arguments(api, new))

    def describe(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the filter from its log group."""
        where = {"LogGroupName": properties["LogGroupName"], "FilterNamePrefix": physical_id}
        filters = api.call("describe_metric_filters", **where)["metricFilters"]
        return next((item for item in filters if item["filterName"] == physical_id), None)

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Delete the filter."""
        api.call("delete_metric_filter", LogGroupName=properties["LogGroupName"], FilterName=physical_id)


PROVIDERS = (LogGroup(), MetricFilter())
