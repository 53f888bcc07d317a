"""The dashboard of a deployment: loss, throughput, nodes, checkpoints and failures of the run in each slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from stacks.constructs.observability.run_metrics import RunMetrics

WIDTH = 8
FULL_WIDTH = 24
"""Widths of widgets, in columns."""

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


@dataclass(frozen=True)
class SlotView:
    """What the dashboard shows of a slot: its metrics, its alarms, and the events in its log groups."""

    fleet: str
    metrics: RunMetrics
    alarms: Sequence[cloudwatch.IAlarm]
    log_groups: Sequence[str]
    has_gpus: bool


def run_dashboard(
    scope: Construct, name: str, *, slots: Sequence[SlotView], alarms: Sequence[cloudwatch.IAlarm]
) -> cloudwatch.Dashboard:
    """Create the dashboard.

    Args:
        scope: The parent construct.
        name: The dashboard's name.
        slots: The slots, each of which has its own alarms, graphs and events.
        alarms: The deployment's other alarms, which are shown with those of the first slot.
    """
    rows: list[list[cloudwatch.IWidget]] = []
    for index, slot in enumerate(slots):
        if len(slots) > 1:
            rows.append([cloudwatch.TextWidget(markdown=f"## {slot.fleet}", width=FULL_WIDTH, height=1)])
        shown = [*slot.alarms, *(alarms if index == 0 else ())]
        rows += [
            [cloudwatch.AlarmStatusWidget(title="Alarms", alarms=shown, width=FULL_WIDTH)],
            _graphs(slot),
            [_events(slot)],
        ]
    return cloudwatch.Dashboard(scope, "Dashboard", dashboard_name=name, widgets=rows)


def _graphs(slot: SlotView) -> list[cloudwatch.IWidget]:
    """Return the graphs of a slot. They include GPUs only if the nodes have GPUs."""
    return [
        cloudwatch.GraphWidget(title=title, left=[slot.metrics.metric(metric) for metric in names], width=WIDTH)
        for title, names in (*GRAPHS, *(GPU_GRAPHS if slot.has_gpus else ()))
    ]


def _events(slot: SlotView) -> cloudwatch.IWidget:
    return cloudwatch.LogQueryWidget(
        title="Latest events",
        log_group_names=list(slot.log_groups),
        query_lines=[
            "fields @timestamp, event, instance_id, reason, message",
            'filter event != "trainer" and event != "gpu_use"',
            "sort @timestamp desc",
            "limit 50",
        ],
        width=FULL_WIDTH,
        height=8,
    )
