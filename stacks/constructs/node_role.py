"""The role of the training nodes: one named statement a grant, each as narrow as the service allows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.config import DeploymentConfig
from stacks.constructs.accepted_findings import accept
from stacks.constructs.copy_rights import copy_statements
from stacks.constructs.endpoints import handles_volumes

# What the bootstrapped account calls its asset bucket.
# Source: https://docs.aws.amazon.com/cdk/v2/guide/bootstrapping-customizing.html (2026-11).
ASSET_BUCKET = "cdk-hnb659fds-assets"


class NodeRole(Construct):
    """Role and instance profile of a node."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        datasets: s3.IBucket,
        checkpoints: s3.IBucket,
        key: kms.IKey,
        volume_ids: Sequence[str] = (),
        copied_volume_id: str | None = None,
    ) -> None:
        super().__init__(scope, id_)
        self.role = iam.Role(self, "Default", assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"))
        stack = Stack.of(self)
        arn = f"arn:{stack.partition}:"
        here = f"{stack.region}:{stack.account}"
        self._allow(
            "FetchBundles", ["s3:GetObject"], [f"{arn}s3:::{ASSET_BUCKET}-{stack.account}-{stack.region}/*.zip"]
        )
        # Lists without a condition on the prefix: a read has no prefix, and S3 would answer 403 for what is not there.
        self._allow("ListDataset", ["s3:ListBucket"], [datasets.bucket_arn])
        self._allow("ReadDataset", ["s3:GetObject"], [datasets.arn_for_objects("datasets/*")])
        if config.training.prepare is not None:
            self._allow_preparation(config.training.prepare.source, datasets)
        self._allow("ListRuns", ["s3:ListBucket"], [checkpoints.bucket_arn])
        self._allow(
            "KeepRuns",
            ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
            [checkpoints.arn_for_objects("runs/*")],
        )
        self._allow("ReportFailures", ["s3:PutObject"], [checkpoints.arn_for_objects("nodes/*")])
        self._allow(
            "UseKeyThroughS3",
            ["kms:Decrypt", "kms:GenerateDataKey"],
            [key.key_arn],
            {"StringEquals": {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}},
        )
        self._allow("ReadRunDocument", ["ssm:GetParameter"], [f"{arn}ssm:{here}:parameter{config.run_parameter}"])
        self._allow(
            "WriteEvents",
            ["logs:CreateLogStream", "logs:PutLogEvents"],
            [f"{arn}logs:{here}:log-group:{config.log_group}:log-stream:*"],
        )
        if config.capacity.backend == "auto_scaling_group":  # the others have no hooks: a machine just shuts down
            group = f"{arn}autoscaling:{here}:autoScalingGroup:*:autoScalingGroupName/{config.group_name}"
            self._allow("LeaveFleet", ["autoscaling:CompleteLifecycleAction"], [group])
        if handles_volumes(config):
            # No resource level: IAM ignores statements about this call that name a resource.
            self._allow("FindVolumes", ["ec2:DescribeVolumes"], ["*"])
        if volume_ids:
            self._allow_volumes(config.name, volume_ids, key)
        if copied_volume_id is not None:
            for statement in copy_statements(stack, config.name, copied_volume_id, key):
                self.role.add_to_policy(statement)
        if config.node.session_manager:
            self._allow_session_manager()
        for index, policy in enumerate(config.node.extra_policies):
            self.role.add_managed_policy(iam.ManagedPolicy.from_managed_policy_arn(self, f"Extra{index}", policy))
        self._accept_wildcards()
        self.profile = iam.CfnInstanceProfile(self, "Profile", roles=[self.role.role_name])

    def _allow_volumes(self, deployment: str, volume_ids: Sequence[str], key: kms.IKey) -> None:
        """Let nodes attach the deployment's volumes to machines of the deployment, and EC2 use the key for that.

        Source: https://docs.aws.amazon.com/ebs/latest/userguide/how-ebs-encryption-works.html (2026-11): at an
        attachment, EC2 asks for a grant in the name of who attaches.
        """
        stack = Stack.of(self)
        here = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}"
        through_ec2 = {"kms:ViaService": f"ec2.{stack.region}.amazonaws.com"}
        self._allow("AttachVolumes", ["ec2:AttachVolume"], [f"{here}:volume/{volume}" for volume in volume_ids])
        self._allow(
            "AttachToNodes",
            ["ec2:AttachVolume"],
            [f"{here}:instance/*"],
            {"StringEquals": {"aws:ResourceTag/trainstack:deployment": deployment}},
        )
        self._allow("UseKeyOfVolumes", ["kms:Decrypt", "kms:DescribeKey"], [key.key_arn], {"StringEquals": through_ec2})
        self._allow(
            "GrantKeyToVolumes",
            ["kms:CreateGrant"],
            [key.key_arn],
            {"StringEquals": through_ec2, "Bool": {"kms:GrantIsForAWSResource": "true"}},
        )

    def _allow_preparation(self, source: str, datasets: s3.IBucket) -> None:
        """Let nodes read raw objects, and write what a function of the run makes of them, and nothing else there."""
        self._allow("ReadSource", ["s3:GetObject"], [datasets.arn_for_objects(f"{source}/*")])
        prepared = datasets.arn_for_objects("datasets/prepared/*")
        self._allow("KeepPreparedData", ["s3:PutObject", "s3:AbortMultipartUpload"], [prepared])
        accept(
            self.policy,
            "AwsSolutions-IAM5",
            "Raw objects, and what is prepared from them, have names of their own below one prefix each",
            applies_to=[rf"Resource::.*/({re.escape(source)}|datasets/prepared)/\*"],
        )

    def _accept_wildcards(self) -> None:
        """Say why a node's rights have wildcards where they have them."""
        policy = self.policy
        accept(
            policy,
            "AwsSolutions-IAM5",
            "Objects are named by the run: each grant is to one prefix of one bucket",
            applies_to=[r"Resource::.*/(datasets|runs|nodes)/\*", r"Resource::arn:.*:s3:::cdk-.*-assets-.*/\*\.zip"],
        )
        accept(
            policy,
            "AwsSolutions-IAM5",
            "Streams are named by the instance, in the one log group of the deployment",
            applies_to=[r"Resource::arn:.*:log-group:/trainstack/.*:log-stream:\*"],
        )
        accept(
            policy,
            "AwsSolutions-IAM5",
            "The identifier of a group is not known before it is made; its name is",
            applies_to=[r"Resource::arn:.*:autoScalingGroup:\*:autoScalingGroupName/.*"],
        )
        accept(
            policy,
            "AwsSolutions-IAM5",
            "Session Manager's and Describe calls have no resource level",
            applies_to=[r"Resource::\*"],
        )
        accept(
            policy,
            "AwsSolutions-IAM5",
            "Machines come and go; a condition keeps to those with the deployment's tag",
            applies_to=[r"Resource::arn:.*:ec2:.*:instance/\*"],
        )
        accept(
            policy,
            "AwsSolutions-IAM5",
            "Copies and snapshots are named when they are made; conditions keep to those with the deployment's tags",
            applies_to=[r"Resource::arn:.*:ec2:.*:(volume|snapshot)/\*"],
        )
        accept(
            policy,
            "CKV_AWS_111",
            "Session Manager's calls have no resource level; other writes name theirs",
        )

    def _allow_session_manager(self) -> None:
        """Let the agent register and carry shells; these calls have no resource level.

        Source (2026-11):
        https://docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-create-iam-instance-profile.html
        """
        self._allow(
            "SessionManager",
            [
                "ssm:UpdateInstanceInformation",
                "ssmmessages:CreateControlChannel",
                "ssmmessages:CreateDataChannel",
                "ssmmessages:OpenControlChannel",
                "ssmmessages:OpenDataChannel",
            ],
            ["*"],
        )

    @property
    def policy(self) -> iam.CfnPolicy:
        """The policy that holds the role's statements."""
        found = self.role.node.find_child("DefaultPolicy").node.default_child
        assert isinstance(found, iam.CfnPolicy)
        return found

    def _allow(
        self, sid: str, actions: list[str], resources: list[str], conditions: dict[str, object] | None = None
    ) -> None:
        statement = iam.PolicyStatement(sid=sid, actions=actions, resources=resources, conditions=conditions)
        self.role.add_to_policy(statement)
