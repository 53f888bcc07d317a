"""One page that shows a run: does it learn, how fast, on how many machines, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from stacks.constructs.run_metrics import RunMetrics

WIDTH = 8  # of 24 columns

GRAPHS = (
    ("Loss", ("Loss",)),
    ("Tokens a second", ("TokensPerSecond",)),
    ("Training steps a minute", ("Steps",)),
    ("Nodes", ("Nodes",)),
    ("Interruptions and failed boots", ("Interruptions", "BootFailures")),
    ("Checkpoints: seconds, and seconds that they held up training", ("CheckpointSeconds", "CheckpointBlockedSeconds")),
    ("Boot, seconds", ("BootSeconds",)),
)
GPU_GRAPHS = (("GPU use: mean, and the idlest, %", ("GpuUtilization", "IdlestGpuUtilization")),)


def run_dashboard(
    scope: Construct,
    name: str,
    *,
    metrics: RunMetrics,
    alarms: Sequence[cloudwatch.IAlarm],
    log_groups: Sequence[str],
    has_gpus: bool,
) -> cloudwatch.Dashboard:
    """Make the dashboard; GPU graphs only where there are GPUs."""
    graphs = [
        cloudwatch.GraphWidget(title=title, left=[metrics.metric(metric) for metric in names], width=WIDTH)
        for title, names in (*GRAPHS, *(GPU_GRAPHS if has_gpus else ()))
    ]
    lines = cloudwatch.LogQueryWidget(
        title="What happened last",
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
