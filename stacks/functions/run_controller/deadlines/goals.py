"""A run's deadline, its reported progress, and the outlook that the controller derives from both.

This module imports only the standard library because it is part of the run controller's Lambda asset.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

OnMiss = Literal["on_demand", "stop", "continue"]
"""The action if spot capacity alone might not meet the deadline."""
Verdict = Literal["on_time", "late", "missed"]
"""Whether the deadline can be met. `late`: not even with all nodes training without interruption from now on."""
VERDICTS: tuple[str, ...] = get_args(Verdict)
RESTART_HOURS = 0.2
"""Assumed time from a launch to the first step, until the controller has measured it. The papers on which `placement`
is based assume the same 12 minutes."""
MAX_DEADLINE_HOURS = 8760.0
"""Longest deadline: one year."""
FRESH_SECONDS = 120.0
"""Maximum age of a report that proves that the run is training. The first member writes a report every 10 s."""
LOOK_BACK_SECONDS = 120.0
"""Age above which a report means that the run is not training. The controller detects a restart after this delay."""


@dataclass(frozen=True)
class Deadline:
    """The deployment's deadline.

    Attributes:
        hours: Time from the run's first request for nodes to its deadline.
        training_hours: Expected training time of the complete run with all nodes, without interruptions.
        on_demand_usd_per_hour: On-Demand price of one node, or None if it is unknown.
        restart_hours: Assumed duration of a restart until one has been measured.
    """

    hours: float
    on_miss: OnMiss
    training_hours: float
    on_demand_usd_per_hour: float | None = None
    restart_hours: float = RESTART_HOURS


@dataclass(frozen=True)
class Progress:
    """The newest report of the run's first member.

    Attributes:
        step_seconds: Duration of the latest step, or None if it is unknown.
        members: Number of nodes that trained.
        checkpoint_step: Step of the newest durable checkpoint, or 0.
    """

    step: int
    steps_total: int
    step_seconds: float | None
    members: int
    checkpoint_step: int
    unix_seconds: float


@dataclass(frozen=True)
class Outlook:
    """The estimates behind a decision about On-Demand nodes.

    Attributes:
        work_hours: Remaining training time with all nodes.
        remaining_hours: Time until the deadline; negative after it has passed.
        step_seconds: Average time per step with all nodes, or None before the first report.
        restart_hours: Assumed duration of a restart, or the longest measured one.
        has_restarted: True if `restart_hours` has been measured.
        expected_usd: Expected cost of all nodes from now to the end of the run, or None if a price is unknown.
        on_demand_nodes: Number of On-Demand nodes to buy.
        restart_since_unix_seconds: Start of the restart that is being measured, or None.
        leaving_since_unix_seconds: Time at which the controller requested spot capacity to replace the On-Demand nodes,
            or None.
        leaving_subnet: The subnet of that request.
    """

    deadline_unix_seconds: float
    work_hours: float
    remaining_hours: float
    step_seconds: float | None = None
    restart_hours: float = RESTART_HOURS
    has_restarted: bool = False
    expected_usd: float | None = None
    on_demand_nodes: int = 0
    verdict: Verdict = "on_time"
    reason: str = ""
    restart_since_unix_seconds: float | None = None
    leaving_since_unix_seconds: float | None = None
    leaving_subnet: str = ""

    def sentence(self, nodes: int) -> str:
        """Return the estimates as one line of text. `nodes` is the run's number of nodes."""
        deadline = datetime.fromtimestamp(self.deadline_unix_seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
        hours = self.remaining_hours
        left = f"{hours:.1f} h left" if hours > 0.0 else f"{-hours:.1f} h ago"
        cost = "" if self.expected_usd is None else f", about {self.expected_usd:,.2f} USD until the end of the run"
        return (
            f"{deadline} ({left}) for {self.work_hours:.1f} h of training and restarts of {self.restart_hours:.2f} h; "
            f"{self.on_demand_nodes} of {nodes} nodes are On-Demand: {self.reason}{cost}"
        )

    @property
    def is_leaving(self) -> bool:
        """Return True while spot capacity is requested in addition to the On-Demand nodes."""
        return self.leaving_since_unix_seconds is not None
