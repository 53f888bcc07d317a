"""The fleet as an Auto Scaling group: the back end with a terminating hook, and an instance refresh for node edits."""

from __future__ import annotations

from aws_cdk import Stack
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from constructs import Construct

from bootstrap.documents import TERMINATING_HOOK
from stacks.capacity_plan import is_spot
from stacks.constructs.accepted_findings import accept
from stacks.constructs.fleets.fleet import Fleet, FleetParts
from stacks.constructs.node_template import TemplateVariant
from stacks.constructs.reservation import MARKET_TYPES, all_reserved

HOOK_SECONDS = 300
SECONDS_A_DAY = 86400
Group = autoscaling.CfnAutoScalingGroup


class AutoScalingFleet(Fleet):
    """An Auto Scaling group, created at zero."""

    def __init__(self, scope: Construct, id_: str, parts: FleetParts) -> None:
        super().__init__(scope, id_)
        config = parts.config
        maintenance, reservation = config.capacity.maintenance, parts.reservation
        # Capacity blocks and interruptible reservations are markets of a launch template, which a mixed instances
        # policy refuses. Source (2026-11):
        # https://docs.aws.amazon.com/autoscaling/ec2/userguide/target-capacity-reservations.html
        mixed = config.capacity.market not in MARKET_TYPES
        group = Group(
            self,
            "Default",
            auto_scaling_group_name=config.group_name,
            min_size="0",
            max_size=str(config.capacity.nodes),
            vpc_zone_identifier=list(parts.subnet_ids),
            capacity_rebalance=maintenance.rebalance == "launch_before_terminate",
            capacity_reservation_specification=(
                None if reservation is None or all_reserved(config) else reservation.for_group()
            ),
            max_instance_lifetime=(
                None if maintenance.max_lifetime_days is None else maintenance.max_lifetime_days * SECONDS_A_DAY
            ),
            lifecycle_hook_specification_list=[
                Group.LifecycleHookSpecificationProperty(
                    lifecycle_hook_name=TERMINATING_HOOK,
                    lifecycle_transition="autoscaling:EC2_INSTANCE_TERMINATING",
                    heartbeat_timeout=HOOK_SECONDS,
                    default_result="CONTINUE",
                )
            ],
            mixed_instances_policy=_mixed(parts) if mixed else None,
            launch_template=None if mixed else _specification(parts.variants[0]),
            tags=[Group.TagPropertyProperty(key="trainstack:deployment", value=config.name, propagate_at_launch=True)],
        )
        # A node edit replaces all nodes at once, after the terminating hook: one by one would restart the gang N times.
        group.add_override(
            "UpdatePolicy",
            {
                "AutoScalingInstanceRefresh": {
                    "Strategy": "Rolling",
                    "Preferences": {"MinHealthyPercentage": 0, "SkipMatching": True},
                },
                "AutoScalingScheduledAction": {"IgnoreUnmodifiedGroupSizeProperties": True},
            },
        )
        accept(
            group,
            "AwsSolutions-AS3",
            "Its events wake the run controller; people hear from alarms",
        )
        if mixed:
            accept(group, "AwsSolutions-EC26", "The launch template encrypts every volume; the rule cannot see it")
        self.resource = group
        # By name, which is fixed: the run controller and the node role can name the group without a cycle.
        self.fleet_id = config.group_name
        self.statements = _statements(Stack.of(self), config.group_name)
        self.patterns = {"FleetChanged": _changes(config.group_name)}


def _mixed(parts: FleetParts) -> autoscaling.CfnAutoScalingGroup.MixedInstancesPolicyProperty:
    capacity, spot = parts.config.capacity, is_spot(parts.config)
    distribution = Group.InstancesDistributionProperty(
        on_demand_base_capacity=capacity.on_demand_base,
        on_demand_percentage_above_base_capacity=0 if spot else 100,
        spot_allocation_strategy=capacity.allocation_strategy if spot else None,
        spot_max_price=None if capacity.max_price_usd is None else str(capacity.max_price_usd),
    )
    first = parts.variants[0]
    overrides = {
        name: Group.LaunchTemplateOverridesProperty(
            instance_type=name, launch_template_specification=None if variant is first else _specification(variant)
        )
        for variant in parts.variants
        for name in variant.instance_types
    }
    return Group.MixedInstancesPolicyProperty(
        instances_distribution=distribution,
        launch_template=Group.LaunchTemplateProperty(
            launch_template_specification=_specification(first),
            overrides=[overrides[name] for name in capacity.instance_types],
        ),
    )


def _specification(variant: TemplateVariant) -> autoscaling.CfnAutoScalingGroup.LaunchTemplateSpecificationProperty:
    return Group.LaunchTemplateSpecificationProperty(
        launch_template_id=variant.template.ref, version=variant.template.attr_latest_version_number
    )


def _statements(stack: Stack, name: str) -> list[iam.PolicyStatement]:
    here = f"{stack.region}:{stack.account}"
    group = f"arn:{stack.partition}:autoscaling:{here}:autoScalingGroup:*:autoScalingGroupName/{name}"
    return [
        # Describe calls have no resource level. Source (2026-11):
        # https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2autoscaling.html
        iam.PolicyStatement(sid="SeeFleet", actions=["autoscaling:DescribeAutoScalingGroups"], resources=["*"]),
        iam.PolicyStatement(
            sid="SizeFleet",
            actions=["autoscaling:UpdateAutoScalingGroup", "autoscaling:DetachInstances"],
            resources=[group],
        ),
    ]


def _changes(name: str) -> events.EventPattern:
    return events.EventPattern(
        source=["aws.autoscaling"],
        detail_type=[
            "EC2 Instance Launch Successful",
            "EC2 Instance Launch Unsuccessful",
            "EC2 Instance Terminate Successful",
        ],
        detail={"AutoScalingGroupName": [name]},
    )
