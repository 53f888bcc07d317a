"""Creates the service-linked roles that launch nodes, and grants them use of the data key.

Sources (2026-11): https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html,
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-fleet-prerequisites.html and spot-fleet-prerequisites.html
in the same guide. The first Auto Scaling group in an account creates its role, but users of the fleet APIs must create
theirs.
"""

from __future__ import annotations

from aws_cdk import Aws, CfnCondition, CfnParameter, Fn, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from stacks.capacity.plan import linked_roles
from stacks.config import DeploymentConfig
from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS


def grant_key_to_linked_roles(key: kms.Key, config: DeploymentConfig) -> None:
    """Let the service-linked roles use the key that encrypts the nodes' volumes."""
    for role in linked_roles(config):
        arn = f"arn:{Aws.PARTITION}:iam::{Aws.ACCOUNT_ID}:role/aws-service-role/{role.service}/{role.name}"
        # The role is in a condition instead of the principal because KMS rejects policies that name roles that do not
        # exist yet.
        is_role: dict[str, dict[str, str]] = {
            "ArnEquals": {"aws:PrincipalArn": arn},
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
    """Create a fleet's service-linked roles if the deployer passes `--parameters ServiceLinkedRoles=create`.

    The parameter is necessary because CloudFormation fails if a role already exists. The roles outlive the stack
    because other fleets in the account use them. They belong to a stack that is deployed before the fleet's stack,
    because a fleet cannot depend on a conditional resource.
    """
    if config.engine != "fleet" or BACK_ENDS[config.capacity.backend].creates_linked_role:
        return
    parameter = CfnParameter(
        scope,
        "ServiceLinkedRoles",
        type="String",
        allowed_values=["existing", "create"],
        default="existing",
        description="create: create the account's service-linked roles for fleets; existing: the roles already exist",
    )
    parameter.override_logical_id("ServiceLinkedRoles")
    creates = CfnCondition(scope, "CreatesLinkedRoles", expression=Fn.condition_equals(parameter, "create"))
    for role in linked_roles(config):
        resource = iam.CfnServiceLinkedRole(scope, f"{role.label}LinkedRole", aws_service_name=role.service)
        resource.cfn_options.condition = creates
        resource.apply_removal_policy(RemovalPolicy.RETAIN)
