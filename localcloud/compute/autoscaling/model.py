"""Plain data classes for the state of Auto Scaling groups. The store's lock guards all changes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from localcloud.api import ApiError
from localcloud.compute.capacity import Market

LAUNCHING = "autoscaling:EC2_INSTANCE_LAUNCHING"
TERMINATING = "autoscaling:EC2_INSTANCE_TERMINATING"
Result = Literal["CONTINUE", "ABANDON"]
KEPT_ACTIVITIES = 500


@dataclass(frozen=True)
class Subnet:
    """A group's subnet."""

    subnet_id: str
    zone: str


@dataclass(frozen=True)
class TemplateReference:
    """A group's reference to a launch template version. `version` can be $Latest or $Default."""

    template_id: str
    name: str
    version: str

    def as_parameter(self) -> dict[str, str]:
        """Return the LaunchTemplate parameter of RunInstances."""
        return {"LaunchTemplateId": self.template_id, "Version": self.version}

    def as_shown(self) -> dict[str, str]:
        """Return the reference in the format of the Describe calls."""
        return {"LaunchTemplateId": self.template_id, "LaunchTemplateName": self.name, "Version": self.version}


@dataclass(frozen=True)
class Override:
    """An override in a mixed instances policy, with an instance type and an optional template."""

    instance_type: str | None
    template: TemplateReference | None = None


@dataclass(frozen=True)
class Distribution:
    """A mixed instances policy's instances distribution. Percentages range from 0 to 100."""

    on_demand_allocation: str = "prioritized"
    on_demand_base: int = 0
    on_demand_percentage: int = 100
    spot_allocation: str = "lowest-price"
    spot_pools: int = 2
    spot_max_price: str | None = None


@dataclass(frozen=True)
class LaunchPlan:
    """A group's launch parameters: a template, or a mixed instances policy if `distribution` is set."""

    template: TemplateReference
    overrides: Sequence[Override] = ()
    distribution: Distribution | None = None
    shown_policy: Mapping[str, Any] | None = None


@dataclass
class Hook:
    """A lifecycle hook."""

    name: str
    transition: str
    heartbeat_seconds: int
    default_result: Result

    @property
    def global_seconds(self) -> int:
        """The maximum total time that an instance waits, regardless of recorded heartbeats.

        Source: docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LifecycleHook.html, 2026-11.
        """
        return min(100 * self.heartbeat_seconds, 172800)


@dataclass
class HookWait:
    """A hook that an instance is waiting for."""

    hook: Hook
    token: str
    heartbeat_deadline: float
    global_deadline: float
    result: Result | None = None


@dataclass
class Activity:
    """A scaling activity."""

    activity_id: str
    group_name: str
    description: str
    cause: str
    started: float
    status: str = "InProgress"
    message: str = ""
    progress: int = 0
    ended: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    instance_id: str | None = None


@dataclass
class Member:
    """An instance in a group."""

    instance_id: str
    instance_type: str
    zone: str
    subnet_id: str
    market: Market
    template: TemplateReference
    joined: float
    state: str = "Pending"
    health: str = "Healthy"
    waits: list[HookWait] = field(default_factory=list)
    activity: Activity | None = None
    holds_place_while_ending: bool = False
    leaves_because: str | None = None

    @property
    def is_ending(self) -> bool:
        """Whether the instance is terminating."""
        return self.state.startswith("Terminating")

    @property
    def counts(self) -> bool:
        """Whether the instance counts toward the group's capacity."""
        return not self.is_ending or self.holds_place_while_ending

    @property
    def is_in_service(self) -> bool:
        """Whether the instance is in service."""
        return self.state == "InService"


@dataclass
class GroupTag:
    """A tag on a group."""

    key: str
    value: str
    propagates: bool


@dataclass
class Refresh:
    """An instance refresh. `to_replace` holds the IDs of the instances that have not been replaced yet."""

    refresh_id: str
    started: float
    preferences: Mapping[str, Any]
    to_replace: set[str]
    total: int
    status: str = "Pending"
    ended: float | None = None


@dataclass
class Group:
    """An Auto Scaling group."""

    name: str
    arn: str
    created: float
    plan: LaunchPlan
    minimum: int
    maximum: int
    desired: int
    subnets: Sequence[Subnet]
    tags: dict[str, GroupTag] = field(default_factory=dict)
    hooks: dict[str, Hook] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    activities: deque[Activity] = field(default_factory=lambda: deque(maxlen=KEPT_ACTIVITIES))
    refreshes: list[Refresh] = field(default_factory=list)
    maximum_lifetime_seconds: int | None = None
    rebalances_capacity: bool = False
    reservations: Mapping[str, Any] = field(default_factory=dict)
    is_deleting: bool = False
    is_launching: bool = False
    user_causes: list[str] = field(default_factory=list)
    launch_not_before: float = 0.0
    launch_failures: int = 0

    def __str__(self) -> str:
        """Return the name, for use in log lines."""
        return self.name

    @property
    def capacity(self) -> int:
        """The number of instances that count toward the capacity."""
        return sum(member.counts for member in self.members.values())

    @property
    def refresh(self) -> Refresh | None:
        """The refresh in progress, or None."""
        if self.refreshes and self.refreshes[-1].status in ("Pending", "InProgress"):
            return self.refreshes[-1]
        return None

    def member(self, instance_id: str) -> Member:
        """Return an instance.

        Raises:
            ApiError: The instance is not in this group.
        """
        if instance_id not in self.members:
            raise ApiError(
                "ValidationError", f"The instance {instance_id} is not part of Auto Scaling group {self.name}."
            )
        return self.members[instance_id]


class GroupStore:
    """Stores all groups. `lock` guards them and their contents, and setting `wake` starts a reconciliation."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.wake = threading.Event()
        self.groups: dict[str, Group] = {}

    def get(self, name: str | None) -> Group:
        """Return a group by name or ARN.

        Raises:
            ApiError: ValidationError, with Auto Scaling's message.
        """
        if name is not None and ":autoScalingGroupName/" in name:
            name = name.rpartition("/")[2]
        if name is None or name not in self.groups:
            raise ApiError("ValidationError", f"AutoScalingGroup name not found - AutoScalingGroup '{name}' not found")
        return self.groups[name]

    def members(self) -> Iterator[tuple[Group, Member]]:
        """Yield every instance with its group."""
        for group in self.groups.values():
            for member in list(group.members.values()):
                yield group, member
