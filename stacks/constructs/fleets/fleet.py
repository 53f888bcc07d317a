"""What every back end is made from, and what it offers to the stack and the run controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import CfnResource
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.config import DeploymentConfig
from stacks.constructs.node_template import TemplateVariant
from stacks.constructs.reservation import ReservationTarget


@dataclass(frozen=True)
class FleetParts:
    """What a fleet is made from: its subnets are those of the first attempt."""

    config: DeploymentConfig
    variants: Sequence[TemplateVariant]
    subnet_ids: Sequence[str]
    candidate_subnet_ids: Sequence[str]
    reservation: ReservationTarget | None
    node_role_arn: str


class Fleet(Construct):
    """A back end, made at zero machines.

    `resource` is the fleet itself; `fleet_id` what its API calls it, a name or an id; `statements` are what the run
    controller may do with it, and no more; `patterns` the events by which it tells of its machines.
    """

    resource: CfnResource
    fleet_id: str
    statements: Sequence[iam.PolicyStatement]
    patterns: Mapping[str, events.EventPattern]
