"""CloudWatch: alarms and dashboards."""

from __future__ import annotations

from typing import Any

from localcloud.cloudformation.providers.base.resource import (
    Create,
    Delete,
    Describe,
    Properties,
    PutResource,
    ResourceApi,
    error_codes,
)
from localcloud.cloudformation.providers.base.tagging import TagCalls


class Alarm(PutResource):
    """AWS::CloudWatch::Alarm."""

    type_name = "AWS::CloudWatch::Alarm"
    service = "cloudwatch"
    create_only = frozenset({"AlarmName"})
    updatable = frozenset(
        {"ActionsEnabled", "AlarmActions", "AlarmDescription", "ComparisonOperator", "DatapointsToAlarm", "Dimensions"}
        | {"EvaluateLowSampleCountPercentile", "EvaluationPeriods", "ExtendedStatistic", "InsufficientDataActions"}
        | {"MetricName", "Metrics", "Namespace", "OKActions", "Period", "Statistic", "Tags", "Threshold", "Unit"}
        | {"ThresholdMetricId", "TreatMissingData"}
    )
    create_call = Create("put_metric_alarm")
    describe_call = Describe("describe_alarms", "AlarmNames", "MetricAlarms.0", listed=True)
    delete_call = Delete("delete_alarms", "AlarmNames", listed=True)
    not_found_codes = error_codes("ResourceNotFound")
    name_property = "AlarmName"
    name_length = 255
    tag_calls = TagCalls(identity="ResourceARN")

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN."""
        return {"Arn": found["AlarmArn"]}

    def tag_identity(self, api: ResourceApi, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return api.arn("cloudwatch", f"alarm:{physical_id}")


class Dashboard(PutResource):
    """AWS::CloudWatch::Dashboard."""

    type_name = "AWS::CloudWatch::Dashboard"
    service = "cloudwatch"
    create_only = frozenset({"DashboardName"})
    updatable = frozenset({"DashboardBody", "Tags"})
    create_call = Create("put_dashboard")
    describe_call = Describe("get_dashboard", "DashboardName")
    delete_call = Delete("delete_dashboards", "DashboardNames", listed=True)
    not_found_codes = error_codes("ResourceNotFound", "DashboardNotFoundError")
    name_property = "DashboardName"
    name_length = 255


PROVIDERS = (Alarm(), Dashboard())
