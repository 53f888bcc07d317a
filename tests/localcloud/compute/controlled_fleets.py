"""The fleet of a `controlled_run.ControlledRun` in each back end, with the settings of the project's templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bootstrap.documents import TERMINATING_HOOK
from localcloud.compute.fleets.model import Fleet as EmulatedFleet
from stacks.functions.run_controller.fleet_back_ends import Backend

KIND = "m5.large"
HOOK_SECONDS = 300
"""Time that a terminating node has to save: see `stacks/constructs/fleet_resources/auto_scaling_group.py`."""
HOOK = {
    "LifecycleHookName": TERMINATING_HOOK,
    "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
    "HeartbeatTimeout": HOOK_SECONDS,
    "DefaultResult": "CONTINUE",
}
FLEET_ROLE = "spot-fleet"


class ControlledFleet(Protocol):
    """A fleet with a size of zero.

    Attributes:
        ids: The names of the groups, or the id of the fleet.
    """

    ids: Sequence[str]

    def is_settled(self) -> bool:
        """Return True if the fleet has its target size, or waits to repeat a rejected launch."""

    def saving(self) -> dict[str, str]:
        """Return the running instances that the fleet terminates once their nodes have saved, with their groups."""


def create_roles(cloud: Any) -> str:
    """Create the roles that all back ends need, once per cloud; return the ARN of the Spot Fleet role."""
    iam = cloud.client("iam")
    for service in ("spot", "ec2fleet", "spotfleet"):
        iam.create_service_linked_role(AWSServiceName=f"{service}.amazonaws.com")
    trust = {"Effect": "Allow", "Principal": {"Service": "spotfleet.amazonaws.com"}, "Action": "sts:AssumeRole"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    return str(iam.create_role(RoleName=FLEET_ROLE, AssumeRolePolicyDocument=document)["Role"]["Arn"])


def empty(cloud: Any, zones: Sequence[str]) -> None:
    """Remove all capacity limits and instances before the next test."""
    for zone in zones:
        cloud.post("pool", {"instance_types": [KIND], "zone": zone, "is_available": True})
    for one in cloud.compute.inventory.all():
        if one.is_live:
            cloud.ec2.terminate_instances(InstanceIds=[one.id])


def create(
    backend: Backend,
    cloud: Any,
    name: str,
    subnets: Mapping[str, str],
    nodes: int,
    tags: Mapping[str, str],
) -> ControlledFleet:
    """Create a fleet. `subnets`: the subnet of each candidate zone. `tags`: the tags of the instances."""
    if backend == "auto_scaling_group":
        return Groups(cloud, name, subnets, nodes, tags)
    return MaintainedFleet(backend, cloud, subnets, tags)


class Groups:
    """One Auto Scaling group for each zone, and a second one for its On-Demand nodes."""

    def __init__(
        self,
        cloud: Any,
        name: str,
        subnets: Mapping[str, str],
        nodes: int,
        tags: Mapping[str, str],
    ) -> None:
        self._cloud = cloud
        first = [f"{name}.{zone[-1]}" for zone in subnets]
        self.ids = [*first, *(f"{group}.on-demand" for group in first)]
        self._store = cloud.compute._groups._store
        template = cloud.template()
        for group, subnet in zip(self.ids, [*subnets.values()] * 2, strict=True):
            percentage = 100 if group.endswith(".on-demand") else 0
            policy = cloud.spot_policy(KIND, template=template, OnDemandPercentageAboveBaseCapacity=percentage)
            cloud.autoscaling.create_auto_scaling_group(
                AutoScalingGroupName=group,
                MinSize=0,
                MaxSize=nodes,
                VPCZoneIdentifier=subnet,
                MixedInstancesPolicy=policy,
                LifecycleHookSpecificationList=[HOOK],
                Tags=[{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in tags.items()],
            )

    def is_settled(self) -> bool:
        """Return True if each group has its desired size, or waits to repeat a rejected launch."""
        with self._store.lock:
            for group in (self._store.groups[name] for name in self.ids):
                ready = [one for one in group.members.values() if one.is_in_service]
                held = [one for one in group.members.values() if one.state == "Terminating:Wait"]
                is_waiting = group.launch_failures > 0 and group.launch_not_before > self._cloud.now()
                if len(ready) + len(held) != len(group.members) or not all(map(self._runs, ready)):
                    return False
                if len(ready) != group.desired and not is_waiting:
                    return False
        return True

    def saving(self) -> dict[str, str]:
        """Return the running instances whose terminating hook waits for their nodes, with their groups."""
        with self._store.lock:
            return {
                one.instance_id: name
                for name in self.ids
                for one in self._store.groups[name].members.values()
                if one.state == "Terminating:Wait" and self._runs(one)
            }

    def _runs(self, member: Any) -> bool:
        return bool(self._cloud.compute.inventory.get(member.instance_id).state == "running")


class MaintainedFleet:
    """An EC2 Fleet or a Spot Fleet. Neither has hooks, so nodes end as soon as the fleet terminates them."""

    def __init__(self, backend: Backend, cloud: Any, subnets: Mapping[str, str], tags: Mapping[str, str]) -> None:
        self._cloud = cloud
        self._store = cloud.compute._fleets._store
        tagged = [{"Key": key, "Value": value} for key, value in tags.items()]
        template = cloud.template(TagSpecifications=[{"ResourceType": "instance", "Tags": tagged}])
        override = {"InstanceType": KIND, "SubnetId": next(iter(subnets.values())), "Priority": 0.0}
        reference = {"LaunchTemplateId": template, "Version": "1"}
        configs = [{"LaunchTemplateSpecification": reference, "Overrides": [override]}]
        if backend == "ec2_fleet":
            answer = cloud.ec2.create_fleet(
                Type="maintain",
                TargetCapacitySpecification={"TotalTargetCapacity": 0, "DefaultTargetCapacityType": "spot"},
                ExcessCapacityTerminationPolicy="termination",
                LaunchTemplateConfigs=configs,
                SpotOptions={"AllocationStrategy": "price-capacity-optimized"},
                OnDemandOptions={"AllocationStrategy": "prioritized"},
            )
            self.ids = [str(answer["FleetId"])]
            return
        answer = cloud.ec2.request_spot_fleet(
            SpotFleetRequestConfig={
                "IamFleetRole": cloud.client("iam").get_role(RoleName=FLEET_ROLE)["Role"]["Arn"],
                "Type": "maintain",
                "TargetCapacity": 0,
                "OnDemandTargetCapacity": 0,
                "ExcessCapacityTerminationPolicy": "default",
                "AllocationStrategy": "priceCapacityOptimized",
                "LaunchTemplateConfigs": configs,
            }
        )
        self.ids = [str(answer["SpotFleetRequestId"])]

    def is_settled(self) -> bool:
        """Return True if the fleet has its target capacity in both markets, or waits to repeat a rejected launch."""
        with self._store.lock:
            fleet: EmulatedFleet = self._store.fleets[self.ids[0]]
            inventory, now = self._cloud.compute.inventory, self._cloud.now()
            if not all(inventory.get(one.instance_id).state == "running" for one in fleet.live()):
                return False
            is_waiting = fleet.failures > 0 and fleet.retry_at > now
            for market in ("on-demand", "spot"):
                count, target = fleet.fulfilled(market), fleet.plan.targets.of(market)
                if (count < target and not is_waiting) or (count > target and fleet.plan.terminates_excess):
                    return False
        return True

    def saving(self) -> dict[str, str]:
        """Return an empty result, because the fleet does not wait for its nodes."""
        return {}
