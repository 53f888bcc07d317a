"""The interface of a fleet construct: its inputs, and the outputs that the stack and the run controller use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aws_cdk import CfnResource
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.config import DeploymentConfig
from stacks.constructs.nodes.capacity_reservation import ReservationTarget
from stacks.constructs.nodes.launch_template import TemplateVariant
from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS


@dataclass(frozen=True)
class FleetParts:
    """The inputs of a fleet. `subnet_ids` lists the subnets for the first attempt."""

    config: DeploymentConfig
    variants: Sequence[TemplateVariant]
    subnet_ids: Sequence[str]
    candidate_subnet_ids: Sequence[str]
    reservation: ReservationTarget | None
    node_role_arn: str


class Fleet(Construct):
    """A fleet that initially has no instances.

    Attributes:
        resources: The fleet's CloudFormation resources.
        fleet_id: The id that the fleet's API uses, or the names of the groups, separated by commas.
        statements: The run controller's permissions on the fleet.
        patterns: Patterns for the events that report launched and terminated instances.
    """

    resources: Sequence[CfnResource]
    fleet_id: str
    statements: Sequence[iam.PolicyStatement]
    patterns: Mapping[str, events.EventPattern]

    def __init__(self, scope: Construct, id_: str, parts: FleetParts) -> None:
        super().__init__(scope, id_)
        self.back_end = BACK_ENDS[parts.config.capacity.backend]

    def _size_statements(self, *fleet_arns: str) -> list[iam.PolicyStatement]:
        return [
            # Describe calls do not support resource-level permissions. Source (2026-11): list_amazonec2autoscaling.html
            # and list_amazonec2.html in https://docs.aws.amazon.com/service-authorization/latest/reference/
            iam.PolicyStatement(sid="DescribeFleet", actions=list(self.back_end.describe_actions), resources=["*"]),
            iam.PolicyStatement(
                sid="SizeFleet", actions=list(self.back_end.modify_actions), resources=list(fleet_arns)
            ),
        ]

    def _instance_events(self, **filters: Any) -> events.EventPattern:
        return events.EventPattern(
            source=[self.back_end.event_source], detail_type=list(self.back_end.event_types), **filters
        )
