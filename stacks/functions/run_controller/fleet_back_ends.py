"""Facts about the fleet back ends: one row for each value of `capacity.backend`.

Configuration, validators, constructs, execution policy, change review and the run controller all read this table. To
add a back end, add a row here, a construct in `stacks/constructs/fleet_resources/` and a client in
`stacks/functions/run_controller/fleet_clients/`. This module is part of the run controller's Lambda asset, so it
imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Backend = Literal["auto_scaling_group", "ec2_fleet", "spot_fleet"]
"""The values of `capacity.backend`."""


@dataclass(frozen=True)
class LinkedRole:
    """A service-linked role. An account has one role of each kind, which all of the account's fleets share."""

    label: str
    service: str
    name: str


SPOT_ROLE = LinkedRole("Spot", "spot.amazonaws.com", "AWSServiceRoleForEC2Spot")


@dataclass(frozen=True)
class BackEnd:
    """A back end's names in AWS APIs and the features that it supports.

    Attributes:
        resource_type: CloudFormation type of the fleet.
        service: Name of the boto3 service that describes and resizes the fleet.
        describe_actions: IAM actions that read the fleet. They do not support resource-level permissions.
        modify_actions: IAM actions that resize the fleet or replace its instances.
        event_source: EventBridge source of the fleet's events.
        event_types: EventBridge detail types that report a launched, terminating or terminated instance.
        linked_role: Service-linked role that launches the instances.
        creates_linked_role: True if the service creates the role together with its first fleet.
        needs_spot_role: Condition under which the service-linked role for EC2 Spot must also exist.
        has_lifecycle_hooks: True if an instance can finish a checkpoint in a terminating hook.
        has_instance_refresh: True if a node edit replaces instances within the fleet. Otherwise, CloudFormation creates
            a second fleet, and an in-place update resets the target capacity to the template's value, 0.
        markets: Supported values of `capacity.market`.
        mixes_reserved_and_spot: True if the on-demand base can use a reservation while other instances are spot.
        limits_instance_lifetime: True if the fleet can replace instances by age.
        always_replaces_unhealthy: True if the replacement of unhealthy instances cannot be disabled.
        rebalance_modes: Supported values of `capacity.maintenance.rebalance`.
        has_termination_delay: True if a rebalanced instance can keep running for a given time.
    """

    resource_type: str
    service: Literal["autoscaling", "ec2"]
    describe_actions: tuple[str, ...]
    modify_actions: tuple[str, ...]
    event_source: str
    event_types: tuple[str, ...]
    linked_role: LinkedRole
    creates_linked_role: bool
    needs_spot_role: Literal["never", "for spot instances", "always"]
    has_lifecycle_hooks: bool
    has_instance_refresh: bool
    markets: tuple[str, ...]
    mixes_reserved_and_spot: bool
    limits_instance_lifetime: bool
    always_replaces_unhealthy: bool
    rebalance_modes: tuple[str, ...]
    has_termination_delay: bool


# Sources (2026-11): https://docs.aws.amazon.com/autoscaling/ec2/userguide/target-capacity-reservations.html,
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ReservedCapacityOptionsRequest.html,
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-fleet-prerequisites.html, spot-fleet-prerequisites.html and
# monitor-ec2-fleet-using-eventbridge.html in the same guide.
BACK_ENDS: Mapping[Backend, BackEnd] = {
    "auto_scaling_group": BackEnd(
        resource_type="AWS::AutoScaling::AutoScalingGroup",
        service="autoscaling",
        describe_actions=(
            *("autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeScalingActivities"),
            "ec2:DescribeInstances",
        ),
        modify_actions=(
            *("autoscaling:SetDesiredCapacity", "autoscaling:DetachInstances"),
            "autoscaling:CompleteLifecycleAction",
        ),
        event_source="aws.autoscaling",
        event_types=(
            "EC2 Instance Launch Successful",
            "EC2 Instance Launch Unsuccessful",
            "EC2 Instance Terminate Successful",
            "EC2 Instance-terminate Lifecycle Action",
        ),
        linked_role=LinkedRole("AutoScaling", "autoscaling.amazonaws.com", "AWSServiceRoleForAutoScaling"),
        creates_linked_role=True,
        needs_spot_role="never",
        has_lifecycle_hooks=True,
        has_instance_refresh=True,
        markets=("spot", "on_demand", "reserved", "capacity_block", "interruptible_reservation"),
        mixes_reserved_and_spot=True,
        limits_instance_lifetime=True,
        always_replaces_unhealthy=True,
        rebalance_modes=("off", "launch_before_terminate"),
        has_termination_delay=False,
    ),
    "ec2_fleet": BackEnd(
        resource_type="AWS::EC2::EC2Fleet",
        service="ec2",
        describe_actions=("ec2:DescribeFleets", "ec2:DescribeFleetInstances", "ec2:DescribeFleetHistory"),
        modify_actions=("ec2:ModifyFleet",),
        event_source="aws.ec2fleet",
        event_types=("EC2 Fleet Instance Change",),
        linked_role=LinkedRole("Ec2Fleet", "ec2fleet.amazonaws.com", "AWSServiceRoleForEC2Fleet"),
        creates_linked_role=False,
        needs_spot_role="for spot instances",
        has_lifecycle_hooks=False,
        has_instance_refresh=False,
        markets=("spot", "on_demand", "reserved"),
        mixes_reserved_and_spot=False,
        limits_instance_lifetime=False,
        always_replaces_unhealthy=False,
        rebalance_modes=("off", "launch", "launch_before_terminate"),
        has_termination_delay=True,
    ),
    "spot_fleet": BackEnd(
        resource_type="AWS::EC2::SpotFleet",
        service="ec2",
        describe_actions=(
            "ec2:DescribeSpotFleetRequests",
            "ec2:DescribeSpotFleetInstances",
            "ec2:DescribeSpotFleetRequestHistory",
        ),
        modify_actions=("ec2:ModifySpotFleetRequest",),
        event_source="aws.ec2spotfleet",
        event_types=("EC2 Spot Fleet Instance Change",),
        linked_role=LinkedRole("SpotFleet", "spotfleet.amazonaws.com", "AWSServiceRoleForEC2SpotFleet"),
        creates_linked_role=False,
        needs_spot_role="always",
        has_lifecycle_hooks=False,
        has_instance_refresh=False,
        markets=("spot", "on_demand"),
        mixes_reserved_and_spot=False,
        limits_instance_lifetime=False,
        always_replaces_unhealthy=False,
        rebalance_modes=("off", "launch", "launch_before_terminate"),
        has_termination_delay=True,
    ),
}
