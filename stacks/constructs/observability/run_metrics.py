"""Run metrics, which CloudWatch extracts from the log lines of nodes and the run controller without an agent."""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.functions.run_controller.causes import TOO_FEW_NODES, Cause

MINUTE = Duration.minutes(1)


@dataclass(frozen=True)
class LoggedMetric:
    """A metric filter: the pattern for lines and the JSON path of the value, in CloudWatch filter syntax.

    Source (2026-11): https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/FilterAndPatternSyntax.html
    """

    pattern: str
    value: str
    unit: str
    statistic: str
    counts: bool = False


# Node events and trainer records are described in docs/architecture.md, sections 4 and 6.
NODE_METRICS = {
    "Steps": LoggedMetric('{ ($.event = "trainer") && ($.record.record = "step") }', "1", "Count", "Sum", counts=True),
    "Loss": LoggedMetric('{ ($.event = "trainer") && ($.record.loss = *) }', "$.record.loss", "None", "Average"),
    "TokensPerSecond": LoggedMetric(
        '{ ($.event = "trainer") && ($.record.tokens_per_second = *) }',
        "$.record.tokens_per_second",
        "Count/Second",
        "Average",
    ),
    "CheckpointSeconds": LoggedMetric(
        '{ ($.event = "trainer") && ($.record.record = "checkpoint") }', "$.record.seconds", "Seconds", "Maximum"
    ),
    "CheckpointBlockedSeconds": LoggedMetric(
        '{ ($.event = "trainer") && ($.record.record = "checkpoint") }',
        "$.record.blocked_seconds",
        "Seconds",
        "Maximum",
    ),
    "CheckpointAgeSeconds": LoggedMetric(
        '{ ($.event = "trainer") && ($.record.checkpoint_age_seconds = *) }',
        "$.record.checkpoint_age_seconds",
        "Seconds",
        "Maximum",
    ),
    "CheckpointAgeIntervals": LoggedMetric(
        '{ ($.event = "trainer") && ($.record.checkpoint_age_intervals = *) }',
        "$.record.checkpoint_age_intervals",
        "None",
        "Maximum",
    ),
    "GpuUtilization": LoggedMetric('{ $.event = "gpu_use" }', "$.gpu_utilization_percent", "Percent", "Average"),
    "IdlestGpuUtilization": LoggedMetric(
        '{ $.event = "gpu_use" }', "$.idlest_gpu_utilization_percent", "Percent", "Minimum"
    ),
    "BootFailures": LoggedMetric('{ $.event = "boot_failed" }', "1", "Count", "Sum", counts=True),
    "BootSeconds": LoggedMetric('{ $.event = "boot_finished" }', "$.seconds", "Seconds", "Maximum"),
    "Interruptions": LoggedMetric('{ $.event = "interruption_notice" }', "1", "Count", "Sum", counts=True),
}


def cause_metric(cause: Cause) -> str:
    """Return the name of the metric that counts the control steps with too few nodes because of a cause."""
    return f"TooFewNodes{cause.title().replace('_', '')}"


CONTROLLER_METRICS = {
    "Nodes": LoggedMetric('{ $.event = "run_controller" }', "$.nodes", "Count", "Maximum"),
    "UsdPerHour": LoggedMetric(
        '{ ($.event = "run_controller") && ($.spending.usd_per_hour = *) }',
        "$.spending.usd_per_hour",
        "None",
        "Maximum",
    ),
    "Usd": LoggedMetric(
        '{ ($.event = "run_controller") && ($.spending.usd = *) }', "$.spending.usd", "None", "Maximum"
    ),
    "LedgerFailed": LoggedMetric(
        '{ ($.event = "run_controller") && ($.ledger = "failed") }', "1", "Count", "Sum", counts=True
    ),
    # Without default values, a metric has no data, and costs nothing, while its cause does not occur.
    **{
        cause_metric(cause): LoggedMetric(
            f'{{ ($.event = "run_controller") && ($.cause = "{cause}") }}', "1", "Count", "Sum"
        )
        for cause in TOO_FEW_NODES
    },
}


class RunMetrics(Construct):
    """Metric filters for a deployment's log groups. Each deployment has a separate metric namespace.

    Dimensions would not work because filters read them from the log line, and metrics with dimensions do not support
    default values.
    """

    def __init__(self, scope: Construct, id_: str, *, deployment: str, node_log: str, controller_log: str) -> None:
        super().__init__(scope, id_)
        self._namespace = f"Trainstack/{deployment}"
        for group, metrics in ((node_log, NODE_METRICS), (controller_log, CONTROLLER_METRICS)):
            for name, metric in metrics.items():
                self._filter(group, name, metric)

    def _filter(self, group: str, name: str, metric: LoggedMetric) -> None:
        logs.CfnMetricFilter(
            self,
            name,
            log_group_name=group,
            filter_pattern=metric.pattern,
            metric_transformations=[
                logs.CfnMetricFilter.MetricTransformationProperty(
                    metric_namespace=self._namespace,
                    metric_name=name,
                    metric_value=metric.value,
                    # If log lines arrive but none match, the count is 0. Without any log lines, the count is unknown.
                    default_value=0 if metric.counts else None,
                    unit=metric.unit,
                )
            ],
        )

    def metric(self, name: str, period: Duration = MINUTE) -> cloudwatch.Metric:
        """Return a filter's metric with its statistic."""
        metric = (NODE_METRICS | CONTROLLER_METRICS)[name]
        return cloudwatch.Metric(namespace=self._namespace, metric_name=name, statistic=metric.statistic, period=period)
