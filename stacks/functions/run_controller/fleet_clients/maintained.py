"""Code that the EC2 Fleet and Spot Fleet clients share. Both maintain a target capacity and cannot detach instances.

While an interrupted instance is still running, the target capacity is raised by one. When the replacement is active,
the target is lowered by one, under a policy that does not terminate excess instances. The two back ends differ in their
calls and in the spelling of response keys.

AWS does not document which instances a lower target terminates if a fleet has Spot and On-Demand Instances. The client
therefore terminates the instances that were bought on demand itself. Source (2026-11):
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifyFleet.html
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from .. import policy
from .fleet import FleetIdentity

_PLACEMENT_KEYS = ("SubnetId", "AvailabilityZone", "AvailabilityZoneId")

# EC2 Fleet and Spot Fleet spell the types of events differently. Source (2026-11):
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_HistoryRecordEntry.html and API_HistoryRecord.html
CHANGES = ("instance-change", "fleet-change", "instanceChange", "fleetRequestChange")
"""Types of events that are neither errors nor warnings."""
LAUNCHED = "launched"

Active = tuple[str, bool]
"""An instance id, and whether it is a Spot Instance."""
Configs = Sequence[Mapping[str, Any]]
"""A fleet's LaunchTemplateConfigs, or the overrides in one of them."""


@dataclass(frozen=True)
class Description:
    """A fleet's description: its target capacity in total and on demand, and its launch template configurations."""

    total: int
    on_demand: int
    launch_template_configs: Configs


class MaintainedFleet(ABC):
    """A fleet, identified by id.

    Attributes:
        keep_excess: Value of ExcessCapacityTerminationPolicy that keeps instances above the target running.
        terminate_excess: Value of ExcessCapacityTerminationPolicy that terminates instances above the target.
    """

    keep_excess: ClassVar[str]
    terminate_excess: ClassVar[str]

    def __init__(self, identity: FleetIdentity, ec2: Any) -> None:
        self._id = identity.fleet_id
        self._maximum = identity.maximum
        self._on_demand_base = identity.on_demand_base
        self._ec2 = ec2

    def describe(self) -> policy.FleetState | None:
        """Return the fleet's current state, or None if the fleet is deleted."""
        found = self._description()
        if found is None:
            return None
        configs, desired = found.launch_template_configs, min(found.total, self._maximum)
        subnets = (override.get("SubnetId") for config in configs for override in config.get("Overrides", []))
        templates = (config["LaunchTemplateSpecification"] for config in configs)
        used = dict.fromkeys(f"{template['LaunchTemplateId']}:{template['Version']}" for template in templates)
        active = self._instances()
        on_demand = max(0, found.on_demand - min(self._on_demand_base, found.total))
        others = [name for name, is_spot in active if not is_spot]
        return policy.FleetState(
            desired=desired,
            maximum=self._maximum,
            subnets=tuple(dict.fromkeys(subnet for subnet in subnets if subnet)),
            template=",".join(used),
            instances=tuple(policy.Instance(name, "InService") for name, _ in active),
            surplus=found.total - desired,
            on_demand=on_demand,
            bought=tuple(others[self._on_demand_base :]),
        )

    def apply(self, action: policy.Action) -> str:
        """Resize the fleet, or move it to other subnets. A fleet can be deleted at any time after its description."""
        match action:
            case policy.Surplus(desired, count):
                self._modify(desired, count, min(self._on_demand_base, desired), self.keep_excess)
            case policy.Release(desired, bought, instances):
                # The target is lowered first, so that the fleet does not replace these instances.
                self._modify(desired, 0, min(self._on_demand_base + bought, desired), self.keep_excess)
                self._ec2.terminate_instances(InstanceIds=list(instances))
            case policy.Resize(desired, subnets, bought):
                moved = {}
                if subnets is not None:
                    found = self._description()
                    if found is None:
                        return f"fleet {self._id} has been deleted"
                    moved["LaunchTemplateConfigs"] = _in_subnets(found.launch_template_configs, subnets)
                on_demand = min(self._on_demand_base + bought, desired)
                # An interrupted node trains until its notice expires, so a purchase must not terminate other nodes.
                excess = self.keep_excess if bought else self.terminate_excess
                self._modify(desired, 0, on_demand, excess, **moved)
            case _:
                raise TypeError(f"{action}: instances of {type(self).__name__} cannot be detached")
        return ""

    def launch_failures(self, since_unix_seconds: float) -> tuple[policy.LaunchFailure, ...]:
        """Return the errors and warnings in the fleet's history, as `<event>: <description>`."""
        failures: list[policy.LaunchFailure] = []
        for record in self._history(datetime.fromtimestamp(since_unix_seconds, UTC)):
            event = record["EventInformation"]
            if event.get("EventSubType") == LAUNCHED:
                failures.clear()
            elif record["EventType"] not in CHANGES:
                parts = (event.get("EventSubType"), event.get("EventDescription"))
                message = ": ".join(part for part in parts if part)
                failures.append(policy.LaunchFailure(message, unix_seconds=record["Timestamp"].timestamp()))
        return tuple(reversed(failures))

    @abstractmethod
    def _history(self, since: datetime) -> Iterator[Mapping[str, Any]]: ...

    @abstractmethod
    def _description(self) -> Description | None: ...

    @abstractmethod
    def _instances(self) -> tuple[Active, ...]: ...

    @abstractmethod
    def _modify(self, desired: int, surplus: int, on_demand: int, excess_policy: str, **more: Any) -> None: ...


def history_records(describe: Callable[..., dict[str, Any]], **query: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the records on all pages of a history call, oldest first. boto3 does not provide a paginator for it."""
    token: dict[str, str] = {}
    while True:
        page = describe(**query, **token)
        yield from page["HistoryRecords"]
        if not page.get("NextToken"):
            return
        token = {"NextToken": page["NextToken"]}


def active_instances(describe: Callable[..., dict[str, Any]], **fleet: str) -> tuple[Active, ...]:
    """Return a fleet's instances from all pages of a describe call. boto3 does not provide a paginator for it.

    The response does not include lifecycle states, so every instance is treated as in service. Only Spot Instances have
    a Spot Instance request. Source (2026-11):
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ActiveInstance.html
    """
    found: list[Active] = []
    token: dict[str, str] = {}
    while True:
        page = describe(**fleet, **token)
        found += [(item["InstanceId"], bool(item.get("SpotInstanceRequestId"))) for item in page["ActiveInstances"]]
        if not page.get("NextToken"):
            return tuple(found)
        token = {"NextToken": page["NextToken"]}


def _in_subnets(configs: Configs, subnets: Sequence[str]) -> list[dict[str, Any]]:
    """Return the same launch templates and instance types with different subnets."""
    return [
        {
            # A description contains both the template's id and its name, but the modify calls reject that combination.
            "LaunchTemplateSpecification": {
                name: config["LaunchTemplateSpecification"][name] for name in ("LaunchTemplateId", "Version")
            },
            "Overrides": [
                {**override, "SubnetId": subnet}
                for override in _one_per_type(config["Overrides"])
                for subnet in subnets
            ],
        }
        for config in configs
    ]


def _one_per_type(overrides: Configs) -> list[dict[str, Any]]:
    types: dict[str, dict[str, Any]] = {}
    for override in overrides:
        unplaced = {name: value for name, value in override.items() if name not in _PLACEMENT_KEYS}
        types.setdefault(override["InstanceType"], unplaced)
    return list(types.values())
