"""The metric and the alarms of a function that runs daily and logs a count."""

from __future__ import annotations

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_logs as logs
from constructs import Construct

DAY = Duration.days(1)


def count_metric(
    scope: Construct, filter_id: str, *, log_group_name: str, event: str, field: str, name: str
) -> cloudwatch.Metric:
    """Create a metric filter, and return its daily maximum.

    Args:
        scope: The construct of the filter.
        filter_id: ID of the filter.
        log_group_name: Log group of the function.
        event: Value of `event` in the function's log line.
        field: Name of the count in that line.
        name: Name of the metric.
    """
    namespace = f"Trainstack/{Stack.of(scope).stack_name}"
    logs.CfnMetricFilter(
        scope,
        filter_id,
        log_group_name=log_group_name,
        filter_pattern=f'{{ $.event = "{event}" }}',
        metric_transformations=[
            logs.CfnMetricFilter.MetricTransformationProperty(
                metric_namespace=namespace, metric_name=name, metric_value=f"$.{field}", unit="Count"
            )
        ],
    )
    return cloudwatch.Metric(namespace=namespace, metric_name=name, statistic="Maximum", period=DAY)


def daily_alarm(scope: Construct, id_: str, metric: cloudwatch.IMetric, description: str) -> cloudwatch.Alarm:
    """Create an alarm without actions for a daily metric above zero. Missing data is not an alarm."""
    return cloudwatch.Alarm(
        scope,
        id_,
        metric=metric,
        threshold=0,
        comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
        evaluation_periods=1,
        treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        alarm_description=description,
    )
