"""Metrics of a run, made by CloudWatch from the lines that nodes and run controller log: no agent, no call of ours."""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_logs as logs
from constructs import Construct

MINUTE = Duration.minutes(1)


@dataclass(frozen=True)
class LoggedMetric:
    """Lines that match, and what of them is the value; the filter language's JSON paths.

    Source (2026-11): https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/FilterAndPatternSyntax.html
    """

    pattern: str
    value: str
    unit: str
    statistic: str
    counts: bool = False


# Events of nodes and records of trainers: docs/architecture.md, sections 4 and 6.
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
    "GpuUtilization": LoggedMetric('{ $.event = "gpu_use" }', "$.gpu_utilization_percent", "Percent", "Average"),
    "IdlestGpuUtilization": LoggedMetric(
        '{ $.event = "gpu_use" }', "$.idlest_gpu_utilization_percent", "Percent", "Minimum"
    ),
    "BootFailures": LoggedMetric('{ $.event = "boot_failed" }', "1", "Count", "Sum", counts=True),
    "BootSeconds": LoggedMetric('{ $.event = "boot_finished" }', "$.seconds", "Seconds", "Maximum"),
    "Interruptions": LoggedMetric('{ $.event = "interruption_notice" }', "1", "Count", "Sum", counts=True),
}
CONTROLLER_METRICS = {
    "Nodes": LoggedMetric('{ $.event = "run_controller" }', "$.nodes", "Count", "Maximum"),
}


class RunMetrics(Construct):
    """Metric filters over a deployment's log groups; the metrics are in a namespace of the deployment's own.

    A namespace, not a dimension: a filter's dimensions come from the line, and metrics with dimensions have no default.
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
                    # Nothing counted among the lines that came is a measured none, unlike no lines at all.
                    default_value=0 if metric.counts else None,
                    unit=metric.unit,
                )
            ],
        )

    def metric(self, name: str, period: Duration = MINUTE) -> cloudwatch.Metric:
        """Return the metric of one of the filters, with the statistic that makes sense of it."""
        metric = (NODE_METRICS | CONTROLLER_METRICS)[name]
        return cloudwatch.Metric(namespace=self._namespace, metric_name=name, statistic=metric.statistic, period=period)
