"""The inputs and outputs of the run controller's decisions: a situation, actions, and the state between invocations.

This module imports only the standard library because it is part of the run controller's Lambda asset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from .causes import REMEDIES, Cause
from .deadlines.goals import Deadline, Outlook, Progress
from .placement import Choose, Estimate
from .places import Place, Record
from .spending import Limits, Spending

Phase = Literal[
    "idle", "no_dataset", "running", "giving_up", "waiting", "ended", "protected", "probing", "stopped", "limited"
]
"""The controller's phase.

- idle: there is no run.
- no_dataset: the fleet stays at zero until the dataset exists.
- running: the fleet should contain the full gang.
- giving_up: the fleet scales to zero before the next attempt.
- waiting: the fleet stays at zero until the next attempt.
- ended: the run has ended.
- protected: the fleet is stopped after boot failures.
- probing: one node tests whether nodes boot again.
- stopped: the fleet stays at zero until the stop is lifted.
- limited: the fleet stays at zero because the run has reached a limit.
"""

PHASES: tuple[str, ...] = get_args(Phase)

_PRESENT_STATES = ("Pending", "Pending:Wait", "Pending:Proceed", "InService")


@dataclass(frozen=True)
class Settings:
    """The deployment's settings.

    Attributes:
        subnets: Candidate subnets in order of preference.
        one_subnet_at_a_time: True if each attempt uses one subnet.
        gang_timeout_seconds: Time for which an incomplete gang waits for more nodes.
        boot_failure_limit: Number of failed boots after which the fleet stops.
        boot_timeout_seconds: Maximum boot time. A probe without a heartbeat after this time has failed.
        retry_command: The command that requests a retry, for messages.
        limits: The limits at which a run is saved and stopped.
        choose: The ranking of the candidate subnets; `order`: as listed.
        places: The place of each candidate subnet; empty with `order` and without a deadline.
        deadline: The run's deadline, or None.
        moves: True if running nodes may move to a cheaper place.
    """

    subnets: tuple[str, ...]
    one_subnet_at_a_time: bool
    gang_timeout_seconds: float
    boot_failure_limit: int
    boot_timeout_seconds: float = 1800.0
    retry_command: str = ""
    limits: Limits = Limits()
    choose: Choose = "order"
    places: tuple[Place, ...] = ()
    deadline: Deadline | None = None
    moves: bool = False

    @property
    def follows_progress(self) -> bool:
        """True if decisions about running nodes need their reports and the current prices."""
        return self.deadline is not None or self.moves


@dataclass(frozen=True)
class Run:
    """The part of the run document that determines the fleet's size.

    `dataset` is the dataset's name in the dataset bucket, or None if the nodes prepare the dataset.
    """

    name: str
    digest: str
    nodes: int
    min_nodes: int
    dataset: str | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: finished, failed (permanently) or bad_configuration."""

    run_digest: str
    outcome: str
    message: str = ""


@dataclass(frozen=True)
class Instance:
    """One instance in the fleet, with its lifecycle state in Auto Scaling terms."""

    instance_id: str
    lifecycle_state: str


@dataclass(frozen=True)
class FleetState:
    """The fleet's current state.

    `surplus` is the target capacity beyond `desired`, which some back ends use to replace interrupted instances. It is
    None for back ends that detach such instances instead (Auto Scaling groups). `template` identifies the launch
    templates by id and version. Version numbers alone are not enough: a new deployment's first version is also 1.
    `subnets` lists the subnets in which instances run or are requested. `held_after_termination` lists the terminated
    instances whose terminating hook is still open. `on_demand` is the part of the target capacity that is bought on
    demand to meet a deadline, in addition to the on-demand base, and `bought` lists its instances.
    """

    desired: int
    maximum: int
    subnets: tuple[str, ...]
    template: str
    instances: tuple[Instance, ...]
    surplus: int | None = None
    held_after_termination: tuple[str, ...] = ()
    on_demand: int = 0
    bought: tuple[str, ...] = ()

    @property
    def requested(self) -> int:
        """The target capacity, with the surplus."""
        return self.desired + (self.surplus or 0)

    def present(self) -> tuple[str, ...]:
        """Return the ids of the instances that are pending or in service."""
        return tuple(item.instance_id for item in self.instances if item.lifecycle_state in _PRESENT_STATES)

    def in_service(self) -> tuple[str, ...]:
        """Return the ids of the instances in service."""
        return tuple(item.instance_id for item in self.instances if item.lifecycle_state == "InService")


@dataclass(frozen=True)
class LaunchFailure:
    """A launch that AWS reports as failed, with its message. `instance_id` is empty if no instance was launched.

    `unix_seconds` is the time of the launch.
    """

    message: str
    instance_id: str = ""
    unix_seconds: float = 0.0


@dataclass(frozen=True)
class ControllerState:
    """The state that the controller keeps between invocations.

    The state is valid for one run document and one set of launch templates. `attempt` counts abandoned gangs.
    `had_instances` is True if a gang in this round had instances, which means that the round cost money.
    `since_unix_seconds` is the time when the gang became too small, or None while it is large enough. `booting` lists
    instances that have not sent a heartbeat yet. A booting instance that disappears is a boot failure unless it is
    `excused` because AWS interrupted it. `probes` counts the probes of a protected fleet. `last_failure` is the report
    on the latest boot failure. `subnets` lists the subnets of the latest attempt. `cause` is the reason for too few
    nodes; it is empty if there are enough. `problem` is the message from which the cause was derived. `spending` is the
    cost of the run so far, or None before the ledger has been read. If the controller ranks the candidate subnets,
    `places` contains the record of each one, `in_place` is True while a gang is in service, and `choice` contains the
    estimates of the latest ranking. With a deadline, `started_unix_seconds` is the time of the run's first request for
    nodes, from which the deadline counts, and `outlook` contains the estimates that determine the number of On-Demand
    nodes. `scores` contains the placement scores of the candidate subnets, and `scored_unix_seconds` the time of the
    request for them. `placed_unix_seconds` is the start of the latest attempt. `moving_to` is the subnet to which
    running nodes move.
    """

    run_digest: str = ""
    template: str = ""
    phase: Phase = "idle"
    subnets: tuple[str, ...] = ()
    attempt: int = 0
    had_instances: bool = False
    since_unix_seconds: float | None = None
    retry_unix_seconds: float | None = None
    boot_failures: int = 0
    probes: int = 0
    booting: tuple[str, ...] = ()
    excused: tuple[str, ...] = ()
    last_failure: str = ""
    cause: Cause | Literal[""] = ""
    problem: str = ""
    reason: str = ""
    spending: Spending | None = None
    places: Mapping[str, Record] = field(default_factory=dict)
    in_place: bool = False
    choice: str = ""
    started_unix_seconds: float | None = None
    outlook: Outlook | None = None
    scores: Mapping[str, int] = field(default_factory=dict)
    scored_unix_seconds: float | None = None
    placed_unix_seconds: float | None = None
    moving_to: str = ""

    def explanation(self) -> str:
        """Return the reason, followed by the problem and its remedy, if any."""
        if not self.problem or not self.cause:
            return self.reason
        return f"{self.reason}; {self.cause}: {self.problem} Remedy: {REMEDIES[self.cause]}"


@dataclass(frozen=True)
class Situation:
    """All inputs to a decision.

    `heard_from` lists the instances that have sent a heartbeat in this run. `interrupted` lists the instances that the
    triggering interruption notices name. `failures` maps instances that disappeared while booting to their reports.
    `launch_failures` lists the launches that failed since the last successful one, newest first. `missing_dataset` is
    the URL of the run's dataset if it does not exist, or empty. `retry_requested` is True if a user requested a retry.
    `stop` is the reason why an operator's request keeps the run stopped, or empty. `spending` is the cost of the run so
    far, or None if it is unknown. `usd_per_hour` is the current price of one node in each candidate subnet with a known
    price. `progress` is the newest report of the run's first member, or None.
    """

    now_unix_seconds: float
    settings: Settings
    run: Run | None
    outcome: Outcome | None
    fleet: FleetState
    heard_from: frozenset[str]
    interrupted: frozenset[str]
    state: ControllerState
    failures: Mapping[str, str] = field(default_factory=dict)
    launch_failures: tuple[LaunchFailure, ...] = ()
    missing_dataset: str = ""
    retry_requested: bool = False
    stop: str = ""
    spending: Spending | None = None
    usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    progress: Progress | None = None


@dataclass(frozen=True)
class Resize:
    """Set the desired capacity and, if given, the subnets of new instances.

    `on_demand` is the part of the capacity that is bought on demand, in addition to the on-demand base.
    """

    desired: int
    subnets: tuple[str, ...] | None = None
    on_demand: int = 0


@dataclass(frozen=True)
class Detach:
    """Detach an interrupted instance without reducing the desired capacity, so that it is replaced immediately."""

    instance_id: str


@dataclass(frozen=True)
class Surplus:
    """Request `count` instances beyond `desired` to replace interrupted ones, without terminating any instance."""

    desired: int
    count: int


@dataclass(frozen=True)
class Release:
    """Terminate instances that were bought on demand, and request `desired` instances, `on_demand` of them bought.

    Only for maintained fleets: AWS does not document which of their instances a lower target terminates.
    """

    desired: int
    on_demand: int
    instances: tuple[str, ...]


@dataclass(frozen=True)
class CompleteTermination:
    """Complete the terminating hook of a terminated instance, which can no longer do so itself."""

    instance_id: str


@dataclass(frozen=True)
class LiftOutcome:
    """Delete the record of a failed run's outcome, so that the controller and the nodes continue the run."""


Action = Resize | Detach | Surplus | Release | CompleteTermination | LiftOutcome


@dataclass(frozen=True)
class Decision:
    """The actions to apply, in order, and the state to store. `ranking` contains the estimates for a new attempt."""

    actions: tuple[Action, ...]
    state: ControllerState
    ranking: tuple[Estimate, ...] = ()
