"""Creates capacity reservations, and specifies which instances use them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC

from aws_cdk import Aws, CfnTag, Fn
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from stacks.capacity.plan import RESERVED_MARKETS
from stacks.config import DeploymentConfig
from stacks.config.capacity import NewReservation
from stacks.config.deployment_tag import DEPLOYMENT_TAG

# Launch template market types for capacity blocks and interruptible reservations.
# Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceMarketOptionsRequest.html
MARKET_TYPES = {"capacity_block": "capacity-block", "interruptible_reservation": "interruptible-capacity-reservation"}


@dataclass(frozen=True)
class ReservationTarget:
    """A reservation or a resource group of reservations. Exactly one of the two is set."""

    id: str | None = None
    resource_group_arn: str | None = None

    def for_launch_template(self) -> ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty:
        """Return the specification that launches instances only into the reservation, even if it is full."""
        return ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty(
            capacity_reservation_preference="capacity-reservations-only",
            capacity_reservation_target=ec2.CfnLaunchTemplate.CapacityReservationTargetProperty(
                capacity_reservation_id=self.id, capacity_reservation_resource_group_arn=self.resource_group_arn
            ),
        )

    def for_group(self) -> autoscaling.CfnAutoScalingGroup.CapacityReservationSpecificationProperty:
        """Return the specification that makes a group's on-demand instances use the reservation first.

        Spot instances never use it.
        """
        target = autoscaling.CfnAutoScalingGroup.CapacityReservationTargetProperty(
            capacity_reservation_ids=None if self.id is None else [self.id],
            capacity_reservation_resource_group_arns=(
                None if self.resource_group_arn is None else [self.resource_group_arn]
            ),
        )
        return autoscaling.CfnAutoScalingGroup.CapacityReservationSpecificationProperty(
            capacity_reservation_preference="capacity-reservations-first", capacity_reservation_target=target
        )


def reservation_target(
    scope: Construct, config: DeploymentConfig, group: ec2.CfnPlacementGroup | None
) -> ReservationTarget | None:
    """Return the deployment's reservation, or None. With a `create` section, also create the reservation."""
    wanted = config.capacity.reservation
    if wanted is None:
        return None
    if wanted.create is None:
        return ReservationTarget(id=wanted.id, resource_group_arn=wanted.resource_group_arn)
    return ReservationTarget(id=_reservation(scope, config, wanted.create, group).attr_id)


def all_reserved(config: DeploymentConfig) -> bool:
    """Return True if all instances run in the reservation. The launch template then specifies it."""
    return config.capacity.market in RESERVED_MARKETS


def _reservation(
    scope: Construct, config: DeploymentConfig, wanted: NewReservation, group: ec2.CfnPlacementGroup | None
) -> ec2.CfnCapacityReservation:
    arn = (
        None if group is None else f"arn:{Aws.PARTITION}:ec2:{Aws.REGION}:{Aws.ACCOUNT_ID}:placement-group/{group.ref}"
    )
    return ec2.CfnCapacityReservation(
        scope,
        "Reservation",
        instance_type=wanted.instance_type,
        instance_platform="Linux/UNIX",
        availability_zone=Fn.join("", [Aws.REGION, wanted.zone]),
        instance_count=wanted.count,
        instance_match_criteria="targeted",  # other instances in the account cannot use it
        # Only cluster placement groups can hold reservations.
        placement_group_arn=arn if config.capacity.placement == "cluster" else None,
        end_date_type="unlimited" if wanted.end is None else "limited",
        end_date=None if wanted.end is None else wanted.end.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        tag_specifications=[
            ec2.CfnCapacityReservation.TagSpecificationProperty(
                resource_type="capacity-reservation",
                tags=[CfnTag(key=DEPLOYMENT_TAG, value=config.name)],
            )
        ],
    )
