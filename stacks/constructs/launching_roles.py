"""The roles that AWS launches nodes with: which ones each back end needs, the key's consent, and making absent ones.

Sources (2026-11): https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html,
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-fleet-prerequisites.html and spot-fleet-prerequisites.html
there: the Auto Scaling roles are made by the first group; who asks for fleets by API must see to theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import Aws, CfnCondition, CfnParameter, Fn, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from stacks.capacity_plan import is_spot
from stacks.config import DeploymentConfig


@dataclass(frozen=True)
class LinkedRole:
    """A service-linked role: one an account, shared with everything else there."""

    label: str
    service: str
    name: str

    @property
    def arn(self) -> str:
        """The role's ARN, whether it is there or not."""
        return f"arn:{Aws.PARTITION}:iam::{Aws.ACCOUNT_ID}:role/aws-service-role/{self.service}/{self.name}"


AUTO_SCALING = LinkedRole("AutoScaling", "autoscaling.amazonaws.com", "AWSServiceRoleForAutoScaling")
EC2_FLEET = LinkedRole("Ec2Fleet", "ec2fleet.amazonaws.com", "AWSServiceRoleForEC2Fleet")
SPOT_FLEET = LinkedRole("SpotFleet", "spotfleet.amazonaws.com", "AWSServiceRoleForEC2SpotFleet")
SPOT = LinkedRole("Spot", "spot.amazonaws.com", "AWSServiceRoleForEC2Spot")


def linked_roles(config: DeploymentConfig) -> tuple[LinkedRole, ...]:
    """Return the service-linked roles that launch the nodes of a deployment."""
    if config.capacity.backend == "auto_scaling_group":
        return (AUTO_SCALING,)
    if config.capacity.backend == "spot_fleet":
        return (SPOT_FLEET, SPOT)  # both are asked for, even without spot machines
    return (EC2_FLEET, SPOT) if is_spot(config) else (EC2_FLEET,)


def admit_to_key(key: kms.Key, config: DeploymentConfig) -> None:
    """Let the launching roles use the key, with which the nodes' volumes are encrypted."""
    for role in linked_roles(config):
        # By condition, not as principal: KMS refuses a policy that names a role which the account does not have yet.
        is_role: dict[str, dict[str, str]] = {
            "ArnEquals": {"aws:PrincipalArn": role.arn},
            "StringEquals": {"kms:CallerAccount": Aws.ACCOUNT_ID},
        }
        use = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
        for_volumes = {**is_role, "Bool": {"kms:GrantIsForAWSResource": "true"}}
        _allow(key, f"{role.label}UsesKey", use, is_role)
        _allow(key, f"{role.label}GrantsVolumes", ["kms:CreateGrant"], for_volumes)


def _allow(key: kms.Key, sid: str, actions: list[str], conditions: dict[str, dict[str, str]]) -> None:
    key.add_to_resource_policy(
        iam.PolicyStatement(
            sid=sid, principals=[iam.AnyPrincipal()], actions=actions, resources=["*"], conditions=conditions
        )
    )


def create_linked_roles(scope: Construct, config: DeploymentConfig) -> None:
    """Make the service-linked roles of a fleet in accounts that lack them: `--parameters ServiceLinkedRoles=create`.

    CloudFormation fails on a role that is there, hence the choice; and it keeps them when the stack goes, since other
    fleets of the account act through them. They belong to a stack before the fleet's, which cannot wait for what may
    not be made. Auto Scaling makes its own.
    """
    if config.capacity.backend == "auto_scaling_group":
        return
    parameter = CfnParameter(
        scope,
        "ServiceLinkedRoles",
        type="String",
        allowed_values=["existing", "create"],
        default="existing",
        description="create: make the account's service-linked roles for fleets; existing: they are there",
    )
    parameter.override_logical_id("ServiceLinkedRoles")
    absent = CfnCondition(scope, "CreatesLinkedRoles", expression=Fn.condition_equals(parameter, "create"))
    for role in linked_roles(config):
        resource = iam.CfnServiceLinkedRole(scope, f"{role.label}LinkedRole", aws_service_name=role.service)
        resource.cfn_options.condition = absent
        resource.apply_removal_policy(RemovalPolicy.RETAIN)
