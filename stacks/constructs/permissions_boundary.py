"""The ceiling over every role of a deployment: what its services call, in this account and region, and no IAM.

A role's own policy says what it may do; the boundary says what no policy can add, whoever edits one later. It is held
as a test that every statement of every role fits under it.
"""

from __future__ import annotations

from collections.abc import Iterable

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.config import DeploymentConfig
from stacks.constructs.accepted_findings import accept

# Calls without a resource level: IAM ignores statements that name one.
# Source: https://docs.aws.amazon.com/service-authorization/latest/reference/reference_policies_actions-resources-contextkeys.html
# (2026-11), the page of each service.
WITHOUT_RESOURCE_LEVEL = (
    "autoscaling:DescribeAutoScalingGroups",
    "ec2:DescribeAvailabilityZones",
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeFastSnapshotRestores",
    "ec2:DescribeFleetInstances",
    "ec2:DescribeFleets",
    "ec2:DescribeImages",
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceStatus",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSnapshots",
    "ec2:DescribeSpotFleetInstances",
    "ec2:DescribeSpotFleetRequests",
    "ec2:DescribeSubnets",
    "ec2:DescribeTags",
    "ec2:DescribeVolumes",
    "logs:DescribeLogGroups",
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)

# What could make a role more than it is. An explicit denial also outweighs what a resource's own policy allows.
ESCALATION = (
    *("iam:Add*", "iam:Attach*", "iam:Create*", "iam:Deactivate*", "iam:Delete*", "iam:Detach*", "iam:Enable*"),
    *("iam:Put*", "iam:Remove*", "iam:Reset*", "iam:Resync*", "iam:Set*", "iam:Tag*", "iam:Untag*", "iam:Update*"),
    *("iam:Upload*", "organizations:*", "account:*", "sts:AssumeRole", "sts:GetFederationToken"),
    *("kms:PutKeyPolicy", "s3:PutBucketPolicy", "s3:DeleteBucketPolicy"),
)


class PermissionsBoundary(Construct):
    """A managed policy, and its name over the roles of other stacks.

    It is made also where the file names another one: a policy cannot be deleted while it still bounds a role.
    """

    def __init__(self, scope: Construct, id_: str, *, config: DeploymentConfig) -> None:
        super().__init__(scope, id_)
        self._config = config
        self._stack = Stack.of(self)
        # Named, so that other stacks need no export of it: one that is in use could never be given up again.
        self._name = f"trainstack-{config.name}-{config.region}-boundary"
        self._policy = iam.ManagedPolicy(
            self,
            "Default",
            managed_policy_name=self._name,
            description="Ceiling over the roles of a Trainstack deployment",
            statements=self._statements(),
        )
        reason = "A boundary grants nothing: it caps what the roles' own policies name one by one"
        accept(self._policy, "AwsSolutions-IAM5", reason)
        accept(self._policy, "CKV_AWS_111", reason)

    def apply(self, stacks: Iterable[Stack]) -> None:
        """Bound every role of these stacks, those that the library makes too."""
        for stack in stacks:
            if stack is not self._stack:
                stack.add_stack_dependency(self._stack)
            iam.PermissionsBoundary.of(stack).apply(self._policy_in(stack))

    def _policy_in(self, stack: Stack) -> iam.IManagedPolicy:
        arn = self._config.node.permissions_boundary
        if arn is not None:
            return iam.ManagedPolicy.from_managed_policy_arn(stack, "RolesBoundary", arn)
        if stack is self._stack:
            return self._policy
        return iam.ManagedPolicy.from_managed_policy_name(stack, "RolesBoundary", self._name)

    def _statements(self) -> list[iam.PolicyStatement]:
        stack, name = self._stack, self._config.name
        here: dict[str, object] = {"StringEquals": {"aws:ResourceAccount": stack.account}}
        own_roles = [f"arn:{stack.partition}:iam::{stack.account}:role/{name}-*"]

        def arn(service: str, resource: str) -> str:
            return f"arn:{stack.partition}:{service}:{stack.region}:{stack.account}:{resource}"

        allowed: list[tuple[str, list[str], list[str], dict[str, object] | None]] = [
            (
                "Buckets",
                ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListBucket"],
                # Bucket names are CloudFormation's to make; the condition keeps to this account's.
                [f"arn:{stack.partition}:s3:::*"],
                here,
            ),
            (
                "Keys",
                [
                    *("kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*"),
                    *("kms:ReEncryptFrom", "kms:ReEncryptTo"),
                ],
                [arn("kms", "key/*")],
                None,
            ),
            ("Documents", ["ssm:GetParameter"], [arn("ssm", f"parameter/trainstack/{name}/*")], None),
            (
                "Logs",
                ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"],
                [arn("logs", f"log-group:*{name}*")],
                None,
            ),
            (
                "Group",
                [
                    *("autoscaling:CompleteLifecycleAction", "autoscaling:DetachInstances"),
                    *("autoscaling:RecordLifecycleActionHeartbeat", "autoscaling:SetInstanceHealth"),
                    *("autoscaling:TerminateInstanceInAutoScalingGroup", "autoscaling:UpdateAutoScalingGroup"),
                ],
                [arn("autoscaling", f"autoScalingGroup:*:autoScalingGroupName/{self._config.group_name}")],
                None,
            ),
            (
                "Fleets",
                [
                    *("ec2:CancelSpotFleetRequests", "ec2:DeleteFleets", "ec2:ModifyFleet"),
                    *("ec2:ModifySpotFleetRequest", "ec2:RequestSpotInstances", "ec2:RunInstances"),
                    *("ec2:CreateTags", "ec2:TerminateInstances"),
                ],
                [arn("ec2", "*"), f"arn:{stack.partition}:ec2:{stack.region}::image/*"],
                None,
            ),
            (
                "Volumes",
                [
                    *(
                        "ec2:AttachVolume",
                        "ec2:CreateSnapshot",
                        "ec2:CreateSnapshots",
                        "ec2:CreateTags",
                        "ec2:CreateVolume",
                    ),
                    *("ec2:DeleteSnapshot", "ec2:DeleteVolume", "ec2:DetachVolume"),
                    *("ec2:DisableFastSnapshotRestores", "ec2:EnableFastSnapshotRestores"),
                    "ec2:ModifyInstanceAttribute",
                ],
                [arn("ec2", "*"), f"arn:{stack.partition}:ec2:{stack.region}::snapshot/*"],
                None,
            ),
            ("Functions", ["lambda:InvokeFunction"], [arn("lambda", f"function:trainstack-{name}-*")], None),
            ("WithoutResourceLevel", list(WITHOUT_RESOURCE_LEVEL), ["*"], None),
            (
                "NodesOfFleets",
                ["iam:PassRole"],
                own_roles,
                {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
            ),
        ]
        return [
            iam.PolicyStatement(sid=sid, actions=actions, resources=resources, conditions=conditions)
            for sid, actions, resources, conditions in allowed
        ] + [iam.PolicyStatement(sid="NoEscalation", effect=iam.Effect.DENY, actions=list(ESCALATION), resources=["*"])]
