"""CloudWatch: alarms and dashboards."""

from __future__ import annotations

from typing import Any

from .resource import Create, Delete, Describe, Place, Properties, PutResource, codes
from .tagging import TagCalls


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
    creates = Create("put_metric_alarm")
    describes = Describe("describe_alarms", "AlarmNames", "MetricAlarms.0", listed=True)
    deletes = Delete("delete_alarms", "AlarmNames", listed=True)
    gone = codes("ResourceNotFound")
    name_property = "AlarmName"
    name_length = 255
    tag_calls = TagCalls(identity="ResourceARN")

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN."""
        return {"Arn": found["AlarmArn"]}

    def tag_identity(self, at: Place, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return at.arn("cloudwatch", f"alarm:{physical_id}")


class Dashboard(PutResource):
    """AWS::CloudWatch::Dashboard."""

    type_name = "AWS::CloudWatch::Dashboard"
    service = "cloudwatch"
    create_only = frozenset({"DashboardName"})
    updatable = frozenset({"DashboardBody", "Tags"})
    creates = Create("put_dashboard")
    describes = Describe("get_dashboard", "DashboardName")
    deletes = Delete("delete_dashboards", "DashboardNames", listed=True)
    gone = codes("ResourceNotFound", "DashboardNotFoundError")
    name_property = "DashboardName"
    name_length = 255


PROVIDERS = (Alarm(), Dashboard())
