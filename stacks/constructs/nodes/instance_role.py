"""The parts that the roles of all instances share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from stacks.config import DeploymentConfig


def through_s3(stack: Stack) -> dict[str, object]:
    """Return a condition for calls of KMS that permits only requests from S3 on behalf of a role."""
    return {"StringEquals": {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}}


def use_key_through_s3(stack: Stack, key: kms.IKey) -> iam.PolicyStatement:
    """Return a statement that lets a role read and write S3 objects that the key encrypts."""
    return iam.PolicyStatement(
        sid="UseKeyThroughS3",
        actions=["kms:Decrypt", "kms:GenerateDataKey"],
        resources=[key.key_arn],
        conditions=through_s3(stack),
    )


class InstanceRole(Construct):
    """A role whose grants are named statements of one inline policy.

    Args:
        service: The service principal that assumes the role.
        path: The role's path, or None for the default.
    """

    def __init__(
        self, scope: Construct, id_: str, *, service: str = "ec2.amazonaws.com", path: str | None = None
    ) -> None:
        super().__init__(scope, id_)
        self.role = iam.Role(self, "Default", assumed_by=iam.ServicePrincipal(service), path=path)

    @property
    def policy(self) -> iam.CfnPolicy:
        """The role's inline policy."""
        found = self.role.node.find_child("DefaultPolicy").node.default_child
        assert isinstance(found, iam.CfnPolicy)
        return found

    def _allow(
        self,
        sid: str,
        actions: Sequence[str],
        resources: Sequence[str],
        conditions: Mapping[str, object] | None = None,
    ) -> None:
        self.role.add_to_policy(
            iam.PolicyStatement(sid=sid, actions=list(actions), resources=list(resources), conditions=conditions)
        )

    def _attach_policies(self, config: DeploymentConfig) -> None:
        """Attach the managed policies in `node.extra_policies`."""
        for index, policy in enumerate(config.node.extra_policies):
            self.role.add_managed_policy(iam.ManagedPolicy.from_managed_policy_arn(self, f"Extra{index}", policy))
