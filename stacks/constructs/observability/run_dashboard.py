"""The dashboard for a run: loss, throughput, nodes, checkpoints and failures."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from stacks.constructs.observability.run_metrics import RunMetrics

WIDTH = 8  # of 24 columns

GRAPHS = (
    ("Loss", ("Loss",)),
    ("Tokens per second", ("TokensPerSecond",)),
    ("Training steps per minute", ("Steps",)),
    ("Nodes", ("Nodes",)),
    ("Instance cost, USD per hour", ("UsdPerHour",)),
    ("Instance cost of the run so far, USD", ("Usd",)),
    ("Interruptions and failed boots", ("Interruptions", "BootFailures")),
    (
        "Checkpoints: duration and training pause, seconds",
        ("CheckpointSeconds", "CheckpointBlockedSeconds"),
    ),
    ("Age of the newest durable checkpoint, seconds", ("CheckpointAgeSeconds",)),
    ("Boot, seconds", ("BootSeconds",)),
)
GPU_GRAPHS = (("GPU utilization: mean and minimum, %", ("GpuUtilization", "IdlestGpuUtilization")),)


def run_dashboard(
    scope: Construct,
    name: str,
    *,
    metrics: RunMetrics,
    alarms: Sequence[cloudwatch.IAlarm],
    log_groups: Sequence[str],
    has_gpus: bool,
) -> cloudwatch.Dashboard:
    """Create the dashboard. It includes GPU graphs only if the nodes have GPUs."""
    graphs = [
        cloudwatch.GraphWidget(title=title, left=[metrics.metric(metric) for metric in names], width=WIDTH)
        for title, names in (*GRAPHS, *(GPU_GRAPHS if has_gpus else ()))
    ]
    lines = cloudwatch.LogQueryWidget(
        title="Latest events",
        log_group_names=list(log_groups),
        query_lines=[
            "fields @timestamp, event, instance_id, reason, message",
            'filter event != "trainer" and event != "gpu_use"',
            "sort @timestamp desc",
            "limit 50",
        ],
        width=24,
        height=8,
    )
    return cloudwatch.Dashboard(
        scope,
        "Dashboard",
        dashboard_name=name,
        widgets=[[cloudwatch.AlarmStatusWidget(title="Alarms", alarms=list(alarms), width=24)], graphs, [lines]],
    )
