"""The fleet as Auto Scaling groups. Only this back end has a terminating hook and instance refresh."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_autoscaling as autoscaling
from constructs import Construct

from bootstrap.documents import TERMINATING_HOOK
from stacks.capacity.plan import (
    group_name_patterns,
    group_names,
    is_spot,
    on_demand_group_names,
    one_zone_at_a_time,
    zone_candidates,
)
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.constructs.fleet_resources.fleet import Fleet, FleetParts
from stacks.constructs.nodes.capacity_reservation import MARKET_TYPES, all_reserved
from stacks.constructs.nodes.launch_template import TemplateVariant
from stacks.constructs.suppressions import suppress

HOOK_SECONDS = 300
SECONDS_A_DAY = 86400
Group = autoscaling.CfnAutoScalingGroup


class AutoScalingFleet(Fleet):
    """Auto Scaling groups that initially have no instances: one group, or one for each candidate zone.

    If the run controller buys On-Demand nodes to meet a deadline, each group has a second group for these nodes.
    The template defines each group's subnets. If the run controller moved a group to another subnet, CloudFormation
    would move it back with every update to the group, because an update writes all properties except the sizes.
    """

    def __init__(self, scope: Construct, id_: str, parts: FleetParts) -> None:
        super().__init__(scope, id_, parts)
        if one_zone_at_a_time(parts.config):
            zones = [zone.upper() for zone in zone_candidates(parts.config)]
            subnets = [[subnet] for subnet in parts.candidate_subnet_ids]
        else:
            zones, subnets = [""], [list(parts.subnet_ids)]
        names, bought = group_names(parts.config), on_demand_group_names(parts.config)
        self.resources = [self._group(parts, *each) for each in zip(zones, names, subnets, strict=True)]
        self.resources += [
            self._group(parts, f"{zone}OnDemand", name, subnet, bought=True)
            for zone, name, subnet in (zip(zones, bought, subnets, strict=True) if bought else ())
        ]
        names = [*names, *bought]
        self.fleet_id = ",".join(names)
        stack = Stack.of(self)
        arn = (
            f"arn:{stack.partition}:autoscaling:{stack.region}:{stack.account}:autoScalingGroup:*:autoScalingGroupName/"
        )
        self.statements = self._size_statements(*(f"{arn}{name}" for name in group_name_patterns(parts.config)))
        self.patterns = {"FleetChanged": self._instance_events(detail={"AutoScalingGroupName": names})}

    def _group(
        self, parts: FleetParts, suffix: str, name: str, subnet_ids: Sequence[str], *, bought: bool = False
    ) -> Group:
        config = parts.config
        maintenance, reservation = config.capacity.maintenance, parts.reservation
        # Launch templates specify capacity blocks and interruptible reservations as market types. A mixed instances
        # policy rejects such templates. Source (2026-11):
        # https://docs.aws.amazon.com/autoscaling/ec2/userguide/target-capacity-reservations.html
        mixed = config.capacity.market not in MARKET_TYPES
        group = Group(
            self,
            suffix or "Default",
            auto_scaling_group_name=name,
            min_size="0",
            max_size=str(config.capacity.nodes),
            vpc_zone_identifier=list(subnet_ids),
            capacity_rebalance=maintenance.rebalance == "launch_before_terminate" and not bought,
            capacity_reservation_specification=(
                None if reservation is None or all_reserved(config) or bought else reservation.for_group()
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
            mixed_instances_policy=_mixed(parts, bought=bought) if mixed else None,
            launch_template=None if mixed else _specification(parts.variants[0]),
            tags=[Group.TagPropertyProperty(key=DEPLOYMENT_TAG, value=config.name, propagate_at_launch=True)],
        )
        group.override_logical_id(f"{self.node.id}{suffix}")
        # A node edit replaces all nodes at once, after their hooks. Replacing N nodes one by one would restart the gang
        # N times.
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
        suppress(
            group,
            "AwsSolutions-AS3",
            "The group's events invoke the run controller, and alarms notify the e-mail subscribers",
        )
        if mixed:
            suppress(
                group, "AwsSolutions-EC26", "The launch template encrypts all volumes; the rule does not detect it"
            )
        return group


def _mixed(parts: FleetParts, *, bought: bool) -> autoscaling.CfnAutoScalingGroup.MixedInstancesPolicyProperty:
    capacity, spot = parts.config.capacity, is_spot(parts.config) and not bought
    distribution = Group.InstancesDistributionProperty(
        on_demand_base_capacity=0 if bought else capacity.on_demand_base,
        on_demand_percentage_above_base_capacity=0 if spot else 100,
        spot_allocation_strategy=capacity.allocation_strategy if spot else None,
        spot_max_price=None if capacity.max_price_usd is None or bought else str(capacity.max_price_usd),
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
