"""The fleet as an EC2 Fleet of type maintain. It tries more capacity pools at once than an Auto Scaling group.

EC2 Fleet does not support lifecycle hooks.

Sources (2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-ec2-ec2fleet.html
(launch templates are create-only, so a node edit first creates a second fleet) and
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-fleet-configuration-strategies.html.
"""

from __future__ import annotations

from aws_cdk import CfnTag, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.capacity.plan import is_spot, one_zone_at_a_time
from stacks.config.capacity import MaintenanceConfig
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.constructs.fleet_resources.fleet import Fleet, FleetParts

SHORTEST_TERMINATION_DELAY_SECONDS = 120
STRATEGIES = {"launch": "launch", "launch_before_terminate": "launch-before-terminate"}


class Ec2Fleet(Fleet):
    """An EC2 Fleet that is created with a target capacity of zero."""

    def __init__(self, scope: Construct, id_: str, parts: FleetParts) -> None:
        super().__init__(scope, id_, parts)
        config = parts.config
        spot = is_spot(config)
        fleet = ec2.CfnEC2Fleet(
            self,
            "Default",
            type="maintain",
            target_capacity_specification=ec2.CfnEC2Fleet.TargetCapacitySpecificationRequestProperty(
                total_target_capacity=0, default_target_capacity_type="spot" if spot else "on-demand"
            ),
            excess_capacity_termination_policy="termination",
            replace_unhealthy_instances=config.capacity.maintenance.replace_unhealthy,
            launch_template_configs=_configs(parts),
            spot_options=_spot_options(parts) if spot else None,
            on_demand_options=ec2.CfnEC2Fleet.OnDemandOptionsRequestProperty(allocation_strategy="prioritized"),
            tag_specifications=[
                ec2.CfnEC2Fleet.TagSpecificationProperty(
                    resource_type="fleet",
                    tags=[CfnTag(key=name, value=value) for name, value in sorted(fleet_tags(parts).items())],
                )
            ],
        )
        self.resources = [fleet]
        self.fleet_id = fleet.ref
        stack = Stack.of(self)
        arn = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}:fleet/{fleet.ref}"
        self.statements = [*self._size_statements(arn), *move_statements(self, parts)]
        self.patterns = {"FleetChanged": self._instance_events(resources=[arn])}


def _configs(parts: FleetParts) -> list[ec2.CfnEC2Fleet.FleetLaunchTemplateConfigRequestProperty]:
    capacity = parts.config.capacity
    price = None if capacity.max_price_usd is None else str(capacity.max_price_usd)
    return [
        ec2.CfnEC2Fleet.FleetLaunchTemplateConfigRequestProperty(
            launch_template_specification=ec2.CfnEC2Fleet.FleetLaunchTemplateSpecificationRequestProperty(
                launch_template_id=variant.template.ref, version=variant.template.attr_latest_version_number
            ),
            overrides=[
                ec2.CfnEC2Fleet.FleetLaunchTemplateOverridesRequestProperty(
                    instance_type=name,
                    subnet_id=subnet,
                    max_price=price,
                    priority=capacity.instance_types.index(name),  # 0 is tried first
                )
                for name in variant.instance_types
                for subnet in parts.subnet_ids
            ],
        )
        for variant in parts.variants
    ]


def _spot_options(parts: FleetParts) -> ec2.CfnEC2Fleet.SpotOptionsRequestProperty:
    maintenance = parts.config.capacity.maintenance
    strategies = None
    if maintenance.rebalance != "off":
        rebalance = ec2.CfnEC2Fleet.CapacityRebalanceProperty(
            replacement_strategy=STRATEGIES[maintenance.rebalance], termination_delay=termination_delay(maintenance)
        )
        strategies = ec2.CfnEC2Fleet.MaintenanceStrategiesProperty(capacity_rebalance=rebalance)
    return ec2.CfnEC2Fleet.SpotOptionsRequestProperty(
        allocation_strategy=parts.config.capacity.allocation_strategy,
        instance_interruption_behavior="terminate",
        maintenance_strategies=strategies,
    )


def termination_delay(maintenance: MaintenanceConfig) -> int | None:
    """Return the delay in seconds before a rebalanced instance terminates. Only launch_before_terminate has a delay."""
    if maintenance.rebalance != "launch_before_terminate":
        return None
    return maintenance.rebalance_termination_delay_seconds or SHORTEST_TERMINATION_DELAY_SECONDS


def fleet_tags(parts: FleetParts) -> dict[str, str]:
    """Return the tags for the fleet itself. The launch template sets the tags for its instances."""
    return {**parts.config.tags, DEPLOYMENT_TAG: parts.config.name}


def move_statements(fleet: Fleet, parts: FleetParts) -> list[iam.PolicyStatement]:
    """Return the permissions for moving a fleet to another subnet: launch templates, subnets and the node role."""
    if not one_zone_at_a_time(parts.config):
        return []
    stack = Stack.of(fleet)
    arn = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}:"
    used = [f"{arn}launch-template/{variant.template.ref}" for variant in parts.variants]
    used += [f"{arn}subnet/{subnet}" for subnet in parts.candidate_subnet_ids]
    return [
        iam.PolicyStatement(sid="MoveFleet", actions=list(fleet.back_end.modify_actions), resources=used),
        iam.PolicyStatement(
            sid="PassNodeRole",
            actions=["iam:PassRole"],
            resources=[parts.node_role_arn],
            conditions={"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        ),
    ]
