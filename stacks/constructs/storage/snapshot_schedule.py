"""Scheduled snapshots of the checkpoint volume. Nodes in other zones restore the volume from these snapshots."""

from __future__ import annotations

from aws_cdk import Stack
from aws_cdk import aws_dlm as dlm
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from bootstrap.documents import SNAPSHOTS_TAG
from stacks.config.storage import CheckpointVolumeConfig
from stacks.constructs.suppressions import suppress

# The tag that Data Lifecycle Manager sets on its snapshots.
# Source: https://docs.aws.amazon.com/ebs/latest/userguide/dlm-elements.html (2026-11).
POLICY_TAG = "aws:dlm:lifecycle-policy-id"


class SnapshotSchedule(Construct):
    """A Data Lifecycle Manager policy for volumes with the deployment's tag, and the policy's role."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: CheckpointVolumeConfig,
        deployment: str,
        volume_id: str,
        key: kms.IKey,
    ) -> None:
        super().__init__(scope, id_)
        stack = Stack.of(self)
        here = f"arn:{stack.partition}:ec2:{stack.region}"
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("dlm.amazonaws.com"))
        for statement in _statements(f"{here}:{stack.account}:volume/{volume_id}", f"{here}::snapshot/*", stack, key):
            role.add_to_policy(statement)
        policy = role.node.find_child("DefaultPolicy")
        suppress(
            policy,
            "AwsSolutions-IAM5",
            "Snapshot ids are not known in advance; conditions limit the grant to snapshots that the schedule created",
            applies_to=[r"Resource::arn:.*::snapshot/\*"],
        )
        suppress(
            policy,
            "AwsSolutions-IAM5",
            "Describe calls do not support resource-level permissions",
            applies_to=[r"Resource::\*"],
        )
        schedule = dlm.CfnLifecyclePolicy.ScheduleProperty(
            name=f"every-{config.snapshot_every_hours}-hours",
            create_rule=dlm.CfnLifecyclePolicy.CreateRuleProperty(
                interval=config.snapshot_every_hours, interval_unit="HOURS"
            ),
            retain_rule=dlm.CfnLifecyclePolicy.RetainRuleProperty(count=config.snapshots_kept),
            copy_tags=True,  # nodes in other zones use these tags to find the snapshots
        )
        self.policy = dlm.CfnLifecyclePolicy(
            self,
            "Default",
            description=f"Checkpoint volume of {deployment}",
            execution_role_arn=role.role_arn,
            state="ENABLED",
            policy_details=dlm.CfnLifecyclePolicy.PolicyDetailsProperty(
                policy_type="EBS_SNAPSHOT_MANAGEMENT",
                resource_types=["VOLUME"],
                target_tags=[{"key": SNAPSHOTS_TAG, "value": deployment}],
                schedules=[schedule],
            ),
        )


def _statements(volume: str, snapshots: str, stack: Stack, key: kms.IKey) -> list[iam.PolicyStatement]:
    """Return the permissions that the schedule needs, limited to its volume and its own snapshots.

    Source (including the permissions for encryption):
    https://docs.aws.amazon.com/ebs/latest/userguide/dlm-prerequisites.html (2026-11).
    """
    through_ec2 = {"kms:ViaService": f"ec2.{stack.region}.amazonaws.com"}
    return [
        iam.PolicyStatement(sid="TakeSnapshots", actions=["ec2:CreateSnapshot"], resources=[volume, snapshots]),
        # There is no condition on ec2:CreateAction, as in AWS's own policy, because the service sets tags in a separate
        # call: https://docs.aws.amazon.com/aws-managed-policy/latest/reference/AWSDataLifecycleManagerServiceRole.html
        # (2026-11).
        iam.PolicyStatement(sid="TagSnapshots", actions=["ec2:CreateTags"], resources=[snapshots]),
        iam.PolicyStatement(
            sid="DeleteOwnSnapshots",
            actions=["ec2:DeleteSnapshot"],
            resources=[snapshots],
            conditions={"StringLike": {f"aws:ResourceTag/{POLICY_TAG}": "policy-*"}},
        ),
        iam.PolicyStatement(
            sid="FindVolumesAndSnapshots",
            # These calls do not support resource-level permissions: IAM ignores statements that name a resource.
            actions=["ec2:DescribeInstances", "ec2:DescribeSnapshots", "ec2:DescribeVolumes"],
            resources=["*"],
        ),
        iam.PolicyStatement(
            sid="UseKeyOfVolume",
            actions=["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext"],
            resources=[key.key_arn],
            conditions={"StringEquals": through_ec2},
        ),
        iam.PolicyStatement(
            sid="GrantKeyToSnapshots",
            actions=["kms:CreateGrant"],
            resources=[key.key_arn],
            conditions={"StringEquals": through_ec2, "Bool": {"kms:GrantIsForAWSResource": "true"}},
        ),
    ]
