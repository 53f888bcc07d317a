"""The fleet as a Spot Fleet request. AWS considers Spot Fleet legacy. This back end is for accounts that depend on it.

Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_SpotFleetRequestConfigData.html
"""

from __future__ import annotations

from aws_cdk import CfnTag, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.capacity.plan import on_demand_base
from stacks.constructs.fleet_resources.ec2_fleet import (
    STRATEGIES,
    fleet_tags,
    move_statements,
    termination_delay,
)
from stacks.constructs.fleet_resources.fleet import Fleet, FleetParts
from stacks.constructs.suppressions import suppress

ALLOCATION = {
    "price-capacity-optimized": "priceCapacityOptimized",
    "capacity-optimized": "capacityOptimized",
    "lowest-price": "lowestPrice",
}
Request = ec2.CfnSpotFleet


class SpotFleet(Fleet):
    """A Spot Fleet request of type maintain that is created with a target capacity of zero."""

    def __init__(self, scope: Construct, id_: str, parts: FleetParts) -> None:
        super().__init__(scope, id_, parts)
        config = parts.config
        tagging = iam.Role(
            self,
            "TaggingRole",
            assumed_by=iam.ServicePrincipal("spotfleet.amazonaws.com"),
            managed_policies=[
                # Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-fleet-prerequisites.html
                iam.ManagedPolicy.from_aws_managed_policy_name("service-role/AmazonEC2SpotFleetTaggingRole")
            ],
        )
        suppress(
            tagging,
            "AwsSolutions-IAM4",
            "AWS keeps this managed policy up to date with the calls that Spot Fleet makes",
            applies_to=[r"Policy::.*/service-role/AmazonEC2SpotFleetTaggingRole"],
        )
        price = config.capacity.max_price_usd
        fleet = Request(
            self,
            "Default",
            spot_fleet_request_config_data=Request.SpotFleetRequestConfigDataProperty(
                iam_fleet_role=tagging.role_arn,
                type="maintain",
                target_capacity=0,
                on_demand_target_capacity=0,
                excess_capacity_termination_policy="default",
                allocation_strategy=ALLOCATION[config.capacity.allocation_strategy],
                on_demand_allocation_strategy="prioritized" if on_demand_base(config) else None,
                instance_interruption_behavior="terminate",
                replace_unhealthy_instances=config.capacity.maintenance.replace_unhealthy,
                spot_price=None if price is None else str(price),
                spot_maintenance_strategies=_maintenance(parts),
                launch_template_configs=_configs(parts),
                tag_specifications=[_tags(parts)],
            ),
        )
        self.resources = [fleet]
        self.fleet_id = fleet.ref
        stack = Stack.of(self)
        arn = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}:spot-fleet-request/{fleet.ref}"
        self.statements = [*self._size_statements(arn), *move_statements(self, parts)]
        self.patterns = {"FleetChanged": self._instance_events(resources=[arn])}


def _configs(parts: FleetParts) -> list[ec2.CfnSpotFleet.LaunchTemplateConfigProperty]:
    order = parts.config.capacity.instance_types
    return [
        Request.LaunchTemplateConfigProperty(
            launch_template_specification=Request.FleetLaunchTemplateSpecificationProperty(
                launch_template_id=variant.template.ref, version=variant.template.attr_latest_version_number
            ),
            overrides=[
                Request.LaunchTemplateOverridesProperty(
                    instance_type=name, subnet_id=subnet, priority=order.index(name)
                )
                for name in variant.instance_types
                for subnet in parts.subnet_ids
            ],
        )
        for variant in parts.variants
    ]


def _maintenance(parts: FleetParts) -> ec2.CfnSpotFleet.SpotMaintenanceStrategiesProperty | None:
    maintenance = parts.config.capacity.maintenance
    if maintenance.rebalance == "off":
        return None
    return Request.SpotMaintenanceStrategiesProperty(
        capacity_rebalance=Request.SpotCapacityRebalanceProperty(
            replacement_strategy=STRATEGIES[maintenance.rebalance], termination_delay=termination_delay(maintenance)
        )
    )


def _tags(parts: FleetParts) -> ec2.CfnSpotFleet.SpotFleetTagSpecificationProperty:
    """Return the request's tags. One contains the template version, so that a node edit creates a second request.

    CloudFormation updates a request's launch templates in place, which does not affect its instances. Tags are
    create-only.
    """
    versions = ".".join(variant.template.attr_latest_version_number for variant in parts.variants)
    tags = {**fleet_tags(parts), "trainstack:template-version": versions}
    return Request.SpotFleetTagSpecificationProperty(
        resource_type="spot-fleet-request", tags=[CfnTag(key=name, value=value) for name, value in sorted(tags.items())]
    )
