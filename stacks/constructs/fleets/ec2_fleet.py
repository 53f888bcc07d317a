"""The fleet as an EC2 Fleet of type maintain: more pools at once than an Auto Scaling group, no hooks.

Sources (2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-ec2-ec2fleet.html
(launch templates are create-only, so a node edit makes a second fleet first) and
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-fleet-configuration-strategies.html.
"""

from __future__ import annotations

from aws_cdk import CfnTag, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.capacity_plan import is_spot, one_zone_at_a_time
from stacks.config.capacity import MaintenanceConfig
from stacks.constructs.fleets.fleet import Fleet, FleetParts

SHORTEST_TERMINATION_DELAY_SECONDS = 120
STRATEGIES = {"launch": "launch", "launch_before_terminate": "launch-before-terminate"}


class Ec2Fleet(Fleet):
    """An EC2 Fleet, created with a target of zero."""

    def __init__(self, scope: Construct, id_: str, parts: FleetParts) -> None:
        super().__init__(scope, id_)
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
        self.resource = fleet
        self.fleet_id = fleet.ref
        arn = f"arn:{Stack.of(self).partition}:ec2:{Stack.of(self).region}:{Stack.of(self).account}:fleet/{fleet.ref}"
        self.statements = fleet_statements(
            Stack.of(self),
            parts,
            see=["ec2:DescribeFleets", "ec2:DescribeFleetInstances"],
            modify="ec2:ModifyFleet",
            fleet_arn=arn,
        )
        self.patterns = {"FleetChanged": fleet_changes("aws.ec2fleet", "EC2 Fleet", arn)}


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
    """Return the seconds that the old machine stays; given with launch_before_terminate, and only with it."""
    if maintenance.rebalance != "launch_before_terminate":
        return None
    return maintenance.rebalance_termination_delay_seconds or SHORTEST_TERMINATION_DELAY_SECONDS


def fleet_tags(parts: FleetParts) -> dict[str, str]:
    """Return the tags of the fleet itself; its machines get those of the launch template."""
    return {**parts.config.tags, "trainstack:deployment": parts.config.name}


def fleet_statements(
    stack: Stack, parts: FleetParts, *, see: list[str], modify: str, fleet_arn: str
) -> list[iam.PolicyStatement]:
    """Return the run controller's rights on a fleet; moving it to another subnet names templates, subnets and role."""
    # Describe calls have no resource level. Source (2026-11):
    # https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
    statements = [
        iam.PolicyStatement(sid="SeeFleet", actions=see, resources=["*"]),
        iam.PolicyStatement(sid="SizeFleet", actions=[modify], resources=[fleet_arn]),
    ]
    if one_zone_at_a_time(parts.config):
        arn = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}:"
        used = [f"{arn}launch-template/{variant.template.ref}" for variant in parts.variants]
        used += [f"{arn}subnet/{subnet}" for subnet in parts.candidate_subnet_ids]
        statements.append(iam.PolicyStatement(sid="MoveFleet", actions=[modify], resources=used))
        statements.append(
            iam.PolicyStatement(
                sid="HandRoleToNodes",
                actions=["iam:PassRole"],
                resources=[parts.node_role_arn],
                conditions={"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
            )
        )
    return statements


def fleet_changes(source: str, name: str, fleet_arn: str) -> events.EventPattern:
    """Return the events about a fleet's machines.

    Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitor-ec2-fleet-using-eventbridge.html
    """
    return events.EventPattern(source=[source], detail_type=[f"{name} Instance Change"], resources=[fleet_arn])
