"""The state of Auto Scaling groups: plain data, changed under the store's lock."""

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
    """A subnet that a group launches into."""

    subnet_id: str
    zone: str


@dataclass(frozen=True)
class TemplateReference:
    """A launch template version as a group names it; `version` may be $Latest or $Default."""

    template_id: str
    name: str
    version: str

    def as_parameter(self) -> dict[str, str]:
        """Return the LaunchTemplate parameter of RunInstances."""
        return {"LaunchTemplateId": self.template_id, "Version": self.version}

    def as_shown(self) -> dict[str, str]:
        """Return it as the describe calls show it."""
        return {"LaunchTemplateId": self.template_id, "LaunchTemplateName": self.name, "Version": self.version}


@dataclass(frozen=True)
class Override:
    """One entry of a mixed instances policy: a type with its weight, perhaps with a template of its own."""

    instance_type: str | None
    weight: int = 1
    template: TemplateReference | None = None


@dataclass(frozen=True)
class Distribution:
    """How a mixed instances policy divides the capacity; percentages are 0 to 100."""

    on_demand_allocation: str = "prioritized"
    on_demand_base: int = 0
    on_demand_percentage: int = 100
    spot_allocation: str = "lowest-price"
    spot_pools: int = 2
    spot_max_price: str | None = None


@dataclass(frozen=True)
class LaunchPlan:
    """What a group launches: a template alone, or a mixed instances policy when `distribution` is there."""

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
    notification_metadata: str | None = None
    target_arn: str | None = None
    role_arn: str | None = None

    @property
    def global_seconds(self) -> int:
        """How long an instance may wait in all, however often heart-beats are recorded.

        Source: docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LifecycleHook.html, 2026-11.
        """
        return min(100 * self.heartbeat_seconds, 172800)


@dataclass
class HookWait:
    """One hook that an instance waits for."""

    hook: Hook
    token: str
    heartbeat_deadline: float
    global_deadline: float
    result: Result | None = None


@dataclass
class Activity:
    """One scaling activity."""

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
    """One instance of a group."""

    instance_id: str
    instance_type: str
    zone: str
    subnet_id: str
    market: Market
    weight: int
    template: TemplateReference
    joined: float
    state: str = "Pending"
    health: str = "Healthy"
    health_cause: str = ""
    is_protected: bool = False
    in_service_since: float | None = None
    waits: list[HookWait] = field(default_factory=list)
    activity: Activity | None = None
    holds_place_while_ending: bool = False
    leaves_because: str | None = None

    @property
    def is_ending(self) -> bool:
        """Whether the instance has begun to leave the group."""
        return self.state.startswith("Terminating")

    @property
    def counts(self) -> bool:
        """Whether the instance counts towards the group's capacity."""
        return not self.is_ending or self.holds_place_while_ending

    @property
    def is_in_service(self) -> bool:
        """Whether the instance is in service."""
        return self.state == "InService"


@dataclass
class GroupTag:
    """A tag of a group."""

    key: str
    value: str
    propagates: bool


@dataclass
class Refresh:
    """One instance refresh; `to_replace` are the ids of instances that it has yet to end."""

    refresh_id: str
    started: float
    preferences: Mapping[str, Any]
    to_replace: set[str]
    total: int
    status: str = "Pending"
    reason: str = ""
    ended: float | None = None
    desired_configuration: Mapping[str, Any] | None = None


@dataclass
class Group:
    """One Auto Scaling group."""

    name: str
    arn: str
    created: float
    plan: LaunchPlan
    minimum: int
    maximum: int
    desired: int
    subnets: Sequence[Subnet]
    uses_default_subnets: bool
    placement_group: str | None
    service_role_arn: str
    tags: dict[str, GroupTag] = field(default_factory=dict)
    hooks: dict[str, Hook] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    suspended: dict[str, str] = field(default_factory=dict)
    activities: deque[Activity] = field(default_factory=lambda: deque(maxlen=KEPT_ACTIVITIES))
    refreshes: list[Refresh] = field(default_factory=list)
    health_check_type: str = "EC2"
    health_check_grace_seconds: int = 0
    cooldown_seconds: int = 300
    default_warmup_seconds: int | None = None
    maximum_lifetime_seconds: int | None = None
    termination_policies: Sequence[str] = ("Default",)
    protects_new_instances: bool = False
    rebalances_capacity: bool = False
    balanced_only: bool = False
    deletion_protection: str = "none"
    reservations: Mapping[str, Any] = field(default_factory=dict)
    is_deleting: bool = False
    is_launching: bool = False
    user_causes: list[str] = field(default_factory=list)
    cooldown_until: float = 0.0
    launch_not_before: float = 0.0
    launch_failures: int = 0

    @property
    def capacity(self) -> int:
        """Return the sum of the weights that count."""
        return sum(member.weight for member in self.members.values() if member.counts)

    @property
    def refresh(self) -> Refresh | None:
        """Return the refresh that is under way."""
        if self.refreshes and self.refreshes[-1].status in ("Pending", "InProgress", "Cancelling"):
            return self.refreshes[-1]
        return None

    def member(self, instance_id: str) -> Member:
        """Return one instance.

        Raises:
            ApiError: it is not of this group.
        """
        if instance_id not in self.members:
            raise ApiError(
                "ValidationError", f"The instance {instance_id} is not part of Auto Scaling group {self.name}."
            )
        return self.members[instance_id]

    def may(self, process: str) -> bool:
        """Tell whether a process is not suspended."""
        return process not in self.suspended


class GroupStore:
    """All groups; `lock` guards every group and all that is in it, `wake` tells the reconciler to look."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.wake = threading.Event()
        self.groups: dict[str, Group] = {}

    def get(self, name: str | None) -> Group:
        """Return one group, by name or by ARN.

        Raises:
            ApiError: ValidationError, worded as Auto Scaling words it.
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

    def of_instance(self, instance_id: str) -> tuple[Group, Member]:
        """Return the group that an instance is in.

        Raises:
            ApiError: it is in none.
        """
        for group, member in self.members():
            if member.instance_id == instance_id:
                return group, member
        raise ApiError(
            "ValidationError", f"Instance Id not found - No managed instance found for instance ID: {instance_id}"
        )
