"""The role of HyperPod's nodes.

The grants are those of AWS's managed policy AmazonSageMakerClusterInstanceRolePolicy and of AWS's examples for a VPC
and for EKS, limited to the deployment's resources where the service permits it. Sources (2026-11):
https://docs.aws.amazon.com/aws-managed-policy/latest/reference/AmazonSageMakerClusterInstanceRolePolicy.html and
https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-prerequisites-iam.html
"""

from __future__ import annotations

from aws_cdk import Stack
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.config import DeploymentConfig
from stacks.constructs.nodes.cluster_nodes import allow_checkpoints
from stacks.constructs.nodes.instance_role import InstanceRole, use_key_through_s3
from stacks.constructs.permissions_boundary import EKS_ACTIONS, HYPERPOD, MESSAGES, VPC_ACTIONS
from stacks.constructs.suppressions import suppress


class HyperPodRole(InstanceRole):
    """The execution role of all instance groups.

    Args:
        control: The control bucket, which contains the life-cycle scripts below `scripts` and the reports.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        control: s3.IBucket,
        key: kms.IKey,
        scripts: str,
        reports: str,
    ) -> None:
        super().__init__(scope, id_, service="sagemaker.amazonaws.com")
        stack = Stack.of(self)
        network = [*VPC_ACTIONS, *(EKS_ACTIONS if config.runs_pods else ())]
        self._allow("AttachNodesToVpc", network, ["*"])
        here = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}"
        self._allow("TagInterfaces", ["ec2:CreateTags"], [f"{here}:network-interface/*"])
        logs = f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:{HYPERPOD}/*"
        self._allow("CreateLogs", ["logs:CreateLogGroup"], [logs])
        streams = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
        self._allow("WriteLogs", streams, [f"{logs}:log-stream:*"])
        of_clusters = {"StringEquals": {"cloudwatch:namespace": HYPERPOD}}
        self._allow("PutMetrics", ["cloudwatch:PutMetricData"], ["*"], of_clusters)
        if config.node.session_manager:
            self._allow("SessionManager", MESSAGES, ["*"])
        self._allow("ReadScripts", ["s3:GetObject"], [control.arn_for_objects(f"{scripts}*")])
        listed = {"StringLike": {"s3:prefix": f"{scripts}*"}}
        self._allow("ListScripts", ["s3:ListBucket"], [control.bucket_arn], listed)
        self._allow("WriteReports", ["s3:PutObject"], [control.arn_for_objects(f"{reports}/*")])
        self.role.add_to_policy(use_key_through_s3(stack, key))
        # SageMaker encrypts the nodes' volumes on behalf of this role. Source (2026-11):
        # https://docs.aws.amazon.com/sagemaker/latest/dg/encryption-at-rest.html
        self._allow("UseKeyOfVolumes", ["kms:DescribeKey"], [key.key_arn])
        for_volumes = {"Bool": {"kms:GrantIsForAWSResource": "true"}}
        self._allow("GrantKeyToVolumes", ["kms:CreateGrant"], [key.key_arn], for_volumes)
        allow_checkpoints(self.role, config)
        self._attach_policies(config)
        self._suppress()

    def _suppress(self) -> None:
        for reason, resource in (
            ("AWS's policy for HyperPod's nodes: HyperPod creates interfaces with names that are not known", r"\*"),
            ("The ids of interfaces are not known in advance", r"arn:.*:ec2:.*:network-interface/\*"),
            ("HyperPod names its log groups", rf"arn:.*:log-group:{HYPERPOD}/\*(:log-stream:\*)?"),
            ("Scripts are in folders named by their contents, reports are named by nodes", r".*/(hyperpod|nodes)/.*\*"),
        ):  # fmt: skip
            suppress(self.policy, "AwsSolutions-IAM5", reason, applies_to=[rf"Resource::{resource}"])
        suppress(
            self.policy,
            "CKV_AWS_111",
            "HyperPod's calls for network interfaces do not name them; other writes name their resources",
        )
        suppress(
            self.policy,
            "CKV_AWS_109",
            "AWS's policy for HyperPod's nodes shares network interfaces that it does not name; grants of the key are "
            "only for AWS resources",
        )
