"""The IAM role for the training nodes. Each grant is a named statement that is as narrow as the service allows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.capacity.plan import group_name_patterns
from stacks.config import DeploymentConfig
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.constructs.cdk_bootstrap_roles import asset_bucket, qualifier_of
from stacks.constructs.network.vpc_endpoints import handles_volumes
from stacks.constructs.nodes.instance_role import InstanceRole, use_key_through_s3
from stacks.constructs.nodes.object_rights import CALLER, object_rights
from stacks.constructs.permissions_boundary import SESSION_MANAGER
from stacks.constructs.storage.volume_copy_policy import volume_copy_statements
from stacks.constructs.suppressions import suppress
from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS


class NodeRole(InstanceRole):
    """The nodes' role and instance profile."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        deployment: str,
        datasets: s3.IBucket,
        checkpoints: s3.IBucket,
        control: s3.IBucket,
        key: kms.IKey,
        volume_ids: Sequence[str] = (),
        copied_volume_id: str | None = None,
    ) -> None:
        super().__init__(scope, id_)
        stack = Stack.of(self)
        arn = f"arn:{stack.partition}:"
        here = f"{stack.region}:{stack.account}"
        bundles = asset_bucket(qualifier_of(self), account=stack.account, region=stack.region)
        self._allow("FetchBundles", ["s3:GetObject"], [f"{arn}s3:::{bundles}/*.zip"])
        # Do not add a condition on the prefix: GetObject does not provide one, so S3 would return 403 instead of 404
        # for a missing object.
        self._allow("ListDataset", ["s3:ListBucket"], [datasets.bucket_arn])
        self._allow("ListRuns", ["s3:ListBucket"], [checkpoints.bucket_arn])
        self._allow("ListRecords", ["s3:ListBucket"], [control.bucket_arn])
        self._allow_objects(config, deployment, {"checkpoints": checkpoints, "control": control, "datasets": datasets})
        self.role.add_to_policy(use_key_through_s3(stack, key))
        parameters = [f"{arn}ssm:{here}:parameter{name}" for name in (config.run_parameter, config.desired_parameter)]
        self._allow("ReadRunDocument", ["ssm:GetParameters"], parameters)
        self._allow(
            "WriteEvents",
            ["logs:CreateLogStream", "logs:PutLogEvents"],
            [f"{arn}logs:{here}:log-group:{config.log_group}:log-stream:*"],
        )
        self._allow_initial_weights(config.training.config.initial_weights)
        if BACK_ENDS[config.capacity.backend].has_lifecycle_hooks:
            group = f"{arn}autoscaling:{here}:autoScalingGroup:*:autoScalingGroupName/"
            groups = [f"{group}{name}" for name in group_name_patterns(config)]
            self._allow("CompleteTermination", ["autoscaling:CompleteLifecycleAction"], groups)
        if handles_volumes(config):
            # This call does not support resource-level permissions: IAM ignores statements that name a resource.
            self._allow("FindVolumes", ["ec2:DescribeVolumes"], ["*"])
        if volume_ids:
            self._allow_volumes(config.name, volume_ids, key)
        if copied_volume_id is not None:
            for statement in volume_copy_statements(stack, config.name, copied_volume_id, key):
                self.role.add_to_policy(statement)
        if config.node.session_manager:
            self._allow("SessionManager", SESSION_MANAGER, ["*"])
        self._attach_policies(config)
        self._suppress_wildcards()
        self.profile = iam.CfnInstanceProfile(self, "Profile", roles=[self.role.role_name])

    def _allow_volumes(self, deployment: str, volume_ids: Sequence[str], key: kms.IKey) -> None:
        """Let nodes attach the deployment's volumes to its instances, and let EC2 use the key for that purpose.

        To attach a volume, EC2 requests a grant on behalf of the caller.
        Source: https://docs.aws.amazon.com/ebs/latest/userguide/how-ebs-encryption-works.html (2026-11)
        """
        stack = Stack.of(self)
        here = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}"
        through_ec2 = {"kms:ViaService": f"ec2.{stack.region}.amazonaws.com"}
        self._allow("AttachVolumes", ["ec2:AttachVolume"], [f"{here}:volume/{volume}" for volume in volume_ids])
        self._allow(
            "AttachToNodes",
            ["ec2:AttachVolume"],
            [f"{here}:instance/*"],
            {"StringEquals": {f"aws:ResourceTag/{DEPLOYMENT_TAG}": deployment}},
        )
        self._allow("UseKeyOfVolumes", ["kms:Decrypt", "kms:DescribeKey"], [key.key_arn], {"StringEquals": through_ec2})
        self._allow(
            "GrantKeyToVolumes",
            ["kms:CreateGrant"],
            [key.key_arn],
            {"StringEquals": through_ec2, "Bool": {"kms:GrantIsForAWSResource": "true"}},
        )

    def _allow_objects(self, config: DeploymentConfig, deployment: str, buckets: Mapping[str, s3.IBucket]) -> None:
        """Let nodes access the objects in `object_rights`, and no others."""
        for right in object_rights(config, deployment):
            bucket = buckets[right.bucket]
            resources = [bucket.arn_for_objects(key) for key in right.keys]
            self._allow(right.sid, list(right.actions), resources, right.conditions)
            suppress(
                self.policy,
                "AwsSolutions-IAM5",
                f"Object names are not known in advance; the grant covers these keys of one bucket: {right.purpose}",
                applies_to=[f"Resource::.*/{_in_findings(key)}" for key in right.keys],
            )

    def _allow_initial_weights(self, address: str | None) -> None:
        """Let nodes read the checkpoints from which a new run loads its weights, such as those of another fleet.

        Reading objects that another key encrypts also requires a permission in `node.extra_policies`.
        """
        if address is None or not address.startswith("s3://"):
            return
        bucket, _, prefix = address.removeprefix("s3://").partition("#")[0].rstrip("/").partition("/")
        arn = f"arn:{Stack.of(self).partition}:s3:::{bucket}"
        keys = f"{prefix}/*" if prefix else "*"
        self._allow("ReadInitialWeights", ["s3:GetObject"], [f"{arn}/{keys}"])
        self._allow("ListInitialWeights", ["s3:ListBucket"], [arn], {"StringLike": {"s3:prefix": keys}})
        suppress(
            self.policy,
            "AwsSolutions-IAM5",
            "The names of a checkpoint's objects are not known in advance; the grant covers one checkpoint store",
            applies_to=[rf"Resource::.*{re.escape(f'{bucket}/{keys}')}"],
        )

    def _suppress_wildcards(self) -> None:
        policy = self.policy
        suppress(
            policy,
            "AwsSolutions-IAM5",
            "Bundles are named by their content",
            applies_to=[r"Resource::arn:.*:s3:::cdk-.*-assets-.*/\*\.zip"],
        )
        suppress(
            policy,
            "AwsSolutions-IAM5",
            "Log streams in the deployment's log group are named after instances",
            applies_to=[r"Resource::arn:.*:log-group:/trainstack/.*:log-stream:\*"],
        )
        suppress(
            policy,
            "AwsSolutions-IAM5",
            "The group's name is known before its creation, but its id is not",
            applies_to=[r"Resource::arn:.*:autoScalingGroup:\*:autoScalingGroupName/.*"],
        )
        suppress(
            policy,
            "AwsSolutions-IAM5",
            "Session Manager's calls and Describe calls do not support resource-level permissions",
            applies_to=[r"Resource::\*"],
        )
        suppress(
            policy,
            "AwsSolutions-IAM5",
            "Instance ids are not known in advance; a condition requires the deployment's tag",
            applies_to=[r"Resource::arn:.*:ec2:.*:instance/\*"],
        )
        suppress(
            policy,
            "AwsSolutions-IAM5",
            "Copy and snapshot ids are not known in advance; conditions require the deployment's tags",
            applies_to=[r"Resource::arn:.*:ec2:.*:(volume|snapshot)/\*"],
        )
        suppress(
            policy,
            "CKV_AWS_111",
            "Session Manager's calls do not support resource-level permissions; other writes name their resources",
        )


def _in_findings(key: str) -> str:
    """Return a pattern for a key as cdk-nag prints it: with policy variables in angle brackets, for any fleet."""
    pattern = re.escape(key.replace(CALLER, "<aws:userid>"))
    return re.sub(r"^runs/[^/]+/", "runs/[^/]+/", pattern)
