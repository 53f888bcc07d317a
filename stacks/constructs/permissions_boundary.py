"""The permissions boundary for all of a deployment's roles.

It covers calls to the services that the deployment uses in this account and region, but not IAM. A role's policy grants
permissions, and the boundary limits what later edits to the policy can grant. A test checks that all statements in all
roles stay within the boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.capacity.plan import group_name_patterns
from stacks.config import DeploymentConfig
from stacks.constructs.suppressions import suppress
from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS

MESSAGES = (
    *("ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel"),
    *("ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel"),
)
"""Session Manager's calls for open shells."""
SESSION_MANAGER = ("ssm:UpdateInstanceInformation", *MESSAGES)
"""The calls with which the SSM agent registers and opens shells. They do not support resource-level permissions.

Source (2026-11):
https://docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-create-iam-instance-profile.html
"""
# Calls without resource-level permissions: IAM ignores statements that name a resource.
# Source: https://docs.aws.amazon.com/service-authorization/latest/reference/reference_policies_actions-resources-contextkeys.html
# (2026-11), the page for each service.
WITHOUT_RESOURCE_LEVEL = (
    *(action for each in BACK_ENDS.values() for action in each.describe_actions),
    "cloudformation:ListStacks",
    "ec2:DescribeAddresses",
    "ec2:DescribeAvailabilityZones",
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeFastSnapshotRestores",
    "ec2:DescribeImages",
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceStatus",
    "ec2:DescribeNatGateways",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSnapshots",
    "ec2:DescribeSpotInstanceRequests",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "ec2:DescribeTags",
    "ec2:DescribeVolumes",
    "ec2:DescribeVpcEndpoints",
    "ec2:GetSpotPlacementScores",
    "fsx:DescribeFileSystems",
    "logs:DescribeLogGroups",
    *SESSION_MANAGER,
)

# Calls that a role could use to extend its permissions. An explicit denial also overrides resource policies.
ESCALATION = (
    *("iam:Add*", "iam:Attach*", "iam:Create*", "iam:Deactivate*", "iam:Delete*", "iam:Detach*", "iam:Enable*"),
    *("iam:Put*", "iam:Remove*", "iam:Reset*", "iam:Resync*", "iam:Set*", "iam:Tag*", "iam:Untag*", "iam:Update*"),
    *("iam:Upload*", "organizations:*", "account:*", "sts:AssumeRole", "sts:GetFederationToken"),
    *("kms:PutKeyPolicy", "s3:PutBucketPolicy", "s3:DeleteBucketPolicy"),
)


VPC_ACTIONS = (
    *("ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface"),
    *("ec2:DeleteNetworkInterfacePermission", "ec2:DescribeDhcpOptions", "ec2:DescribeNetworkInterfaces"),
    *("ec2:DescribeSecurityGroups", "ec2:DescribeSubnets", "ec2:DescribeVpcs", "ec2:DetachNetworkInterface"),
)
"""Calls with which HyperPod attaches the instances, which run in its own account, to the VPC. Source (2026-11):
https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-prerequisites-iam.html"""
EKS_ACTIONS = (
    *("ec2:AssignPrivateIpAddresses", "ec2:ModifyNetworkInterfaceAttribute", "ec2:UnassignPrivateIpAddresses"),
    *("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetAuthorizationToken"),
    *("ecr:GetDownloadUrlForLayer", "eks-auth:AssumeRoleForPodIdentity"),
)
"""Calls for the addresses of pods, their images and their roles. Source: the same page."""
HYPERPOD = "/aws/sagemaker/Clusters"
"""Prefix of the log groups of HyperPod's clusters, and namespace of their metrics."""
WRITE_LOGS = ("logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams")


def _modify_actions(service: str) -> list[str]:
    return [action for each in BACK_ENDS.values() if each.service == service for action in each.modify_actions]


class PermissionsBoundary(Construct):
    """A managed policy that bounds the roles in one or more stacks.

    It belongs to the stack of the first role that needs it, so the other stacks can be deleted without it. If the
    deployment file names another boundary, the policy is not created: accounts that require their own boundary often
    deny `iam:CreatePolicy`.

    Args:
        scope: The stack that the policy belongs to.
        id_: The construct id.
        config: The deployment.
        suffix: End of the policy's name.
        statements: The statements that allow actions. A statement that denies escalation is added.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        suffix: str,
        statements: Sequence[iam.PolicyStatement],
    ) -> None:
        super().__init__(scope, id_)
        self._config = config
        self._stack = Stack.of(self)
        # The name is fixed so that other stacks do not need an export. CloudFormation cannot remove an export that is
        # in use.
        self._name = f"trainstack-{config.name}-{config.region}-{suffix}"
        self._policy = self._own_policy(statements) if config.node.permissions_boundary is None else None

    def _own_policy(self, statements: Sequence[iam.PolicyStatement]) -> iam.ManagedPolicy:
        deny = iam.PolicyStatement(
            sid="NoEscalation", effect=iam.Effect.DENY, actions=list(ESCALATION), resources=["*"]
        )
        policy = iam.ManagedPolicy(
            self,
            "Default",
            managed_policy_name=self._name,
            description="Permissions boundary of the roles of a Trainstack deployment",
            statements=[*statements, deny],
        )
        reason = "A boundary does not grant permissions: it limits what role policies grant"
        for rule in ("AwsSolutions-IAM5", "CKV_AWS_109", "CKV_AWS_111"):
            suppress(policy, rule, reason)
        return policy

    def apply(self, *stacks: Stack) -> None:
        """Apply the boundary to all roles in these stacks, including the roles that the CDK creates."""
        for stack in stacks:
            if stack is not self._stack:
                stack.add_stack_dependency(self._stack)
            iam.PermissionsBoundary.of(stack).apply(self._policy_in(stack))

    def _policy_in(self, stack: Stack) -> iam.IManagedPolicy:
        arn = self._config.node.permissions_boundary
        if arn is not None:
            return iam.ManagedPolicy.from_managed_policy_arn(stack, "RolesBoundary", arn)
        if stack is self._stack and self._policy is not None:
            return self._policy
        return iam.ManagedPolicy.from_managed_policy_name(stack, "RolesBoundary", self._name)


def network_statements(stack: Stack) -> list[iam.PolicyStatement]:
    """Return the statements that limit the roles in NetworkStack, which write flow logs.

    NetworkStack has a separate boundary because the roles in StorageStack outlive the network.
    """
    log_groups = f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:{stack.stack_name}-*"
    return [iam.PolicyStatement(sid="FlowLogs", actions=list(WRITE_LOGS), resources=[log_groups])]


def deployment_statements(stack: Stack, config: DeploymentConfig) -> list[iam.PolicyStatement]:
    """Return the statements that limit the roles in the other stacks, for the account and region of a stack.

    With several slots, the names of parameters and groups have one pattern for all slots after the first one. A list of
    the fleets would exceed the maximum size of a managed policy, 6,144 characters. Source (2026-11):
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
    """
    name = config.name
    if config.engine != "fleet":
        return cluster_statements(stack, config)
    slots = [f"{name}-*"] if len(config.slot_suffixes) > 1 else []
    own_roles = [f"arn:{stack.partition}:iam::{stack.account}:role/{name}-*"]

    def arn(service: str, resource: str) -> str:
        return f"arn:{stack.partition}:{service}:{stack.region}:{stack.account}:{resource}"

    allowed: list[tuple[str, list[str], list[str], dict[str, object] | None]] = [
        (
            "Documents",
            ["ssm:GetParameters"],
            [arn("ssm", f"parameter/trainstack/{one}/*") for one in (name, *slots)],
            None,
        ),
        (
            "Logs",
            list(WRITE_LOGS),
            [arn("logs", f"log-group:*{name}*")],
            None,
        ),
        (
            "Group",
            [
                *_modify_actions("autoscaling"),
                *("autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat"),
                *("autoscaling:SetInstanceHealth", "autoscaling:TerminateInstanceInAutoScalingGroup"),
            ],
            [
                arn("autoscaling", f"autoScalingGroup:*:autoScalingGroupName/{pattern}")
                for pattern in (*group_name_patterns(config), *(f"trainstack-{one}" for one in slots))
            ],
            None,
        ),
        (
            "Fleets",
            [
                *_modify_actions("ec2"),
                *("ec2:CancelSpotFleetRequests", "ec2:CreateTags", "ec2:DeleteFleets"),
                *("ec2:RequestSpotInstances", "ec2:RunInstances", "ec2:TerminateInstances"),
            ],
            # The ARNs of images and snapshots do not contain an account. Spot Fleet's role launches instances with the
            # dataset volume's snapshot.
            [
                arn("ec2", "*"),
                f"arn:{stack.partition}:ec2:{stack.region}::image/*",
                f"arn:{stack.partition}:ec2:{stack.region}::snapshot/*",
            ],
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
        (
            "Queues",
            ["sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"],
            [arn("sqs", f"{name}-*")],
            None,
        ),
        *_of_pipeline(config, arn),
        ("WithoutResourceLevel", list(WITHOUT_RESOURCE_LEVEL), ["*"], None),
        (
            "NodesOfFleets",
            ["iam:PassRole"],
            own_roles,
            {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        ),
    ]
    others = [
        iam.PolicyStatement(sid=sid, actions=actions, resources=resources, conditions=conditions)
        for sid, actions, resources, conditions in allowed
    ]
    return [*_data_statements(stack), *others]


def _data_statements(stack: Stack) -> list[iam.PolicyStatement]:
    """Return the statements about objects and keys."""
    return [
        iam.PolicyStatement(
            sid="Buckets",
            actions=["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListBucket"],
            # CloudFormation chooses bucket names. The condition limits the grant to buckets in this account.
            resources=[f"arn:{stack.partition}:s3:::*"],
            conditions={"StringEquals": {"aws:ResourceAccount": stack.account}},
        ),
        iam.PolicyStatement(
            sid="Keys",
            actions=[
                *("kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*"),
                *("kms:ReEncryptFrom", "kms:ReEncryptTo"),
            ],
            resources=[f"arn:{stack.partition}:kms:{stack.region}:{stack.account}:key/*"],
        ),
    ]


def cluster_statements(stack: Stack, config: DeploymentConfig) -> list[iam.PolicyStatement]:
    """Return the statements that limit the roles of a managed cluster's nodes."""
    here = f"{stack.region}:{stack.account}"
    shells = iam.PolicyStatement(sid="Shells", actions=list(SESSION_MANAGER), resources=["*"])
    found = [*_data_statements(stack), shells]
    if config.has_eks_stack:
        pulls = [action for action in EKS_ACTIONS if action.startswith("ecr:")]
        actions = [*pulls, "ecr:BatchImportUpstreamImage", "eks-auth:AssumeRoleForPodIdentity"]
        return [*found, iam.PolicyStatement(sid="Nodes", actions=actions, resources=["*"])]
    if config.engine == "pcs":
        actions = ["pcs:RegisterComputeNodeGroupInstance"]
        return [*found, iam.PolicyStatement(sid="Nodes", actions=actions, resources=["*"])]
    interfaces = [*VPC_ACTIONS, *EKS_ACTIONS, "cloudwatch:PutMetricData"]
    logs = f"arn:{stack.partition}:logs:{here}:log-group:{HYPERPOD}/*"
    tagged = f"arn:{stack.partition}:ec2:{here}:network-interface/*"
    return [
        *found,
        iam.PolicyStatement(sid="Nodes", actions=interfaces, resources=["*"]),
        iam.PolicyStatement(sid="Interfaces", actions=["ec2:CreateTags"], resources=[tagged]),
        iam.PolicyStatement(sid="Logs", actions=["logs:CreateLogGroup", *WRITE_LOGS], resources=[logs]),
    ]


def _of_pipeline(
    config: DeploymentConfig, arn: Callable[[str, str], str]
) -> list[tuple[str, list[str], list[str], dict[str, object] | None]]:
    """Return the statements that only the state machine of a pipeline and its function need."""
    if config.pipeline is None:
        return []
    name = config.name
    parameters = [arn("ssm", f"parameter/trainstack/{one}/*") for one in (name, f"{name}-*")]
    kinds = ("execution", "stateMachine")
    return [
        ("PipelineRuns", ["ssm:DeleteParameter", "ssm:PutParameter"], parameters, None),
        ("PipelineFunction", ["lambda:InvokeFunction"], [arn("lambda", f"function:{name}-WorkflowStack-*")], None),
        (
            "Pipeline",
            [
                *("states:DescribeExecution", "states:RedriveExecution", "states:StartExecution"),
                "states:StopExecution",
            ],
            [arn("states", f"{kind}:trainstack-{name}*") for kind in kinds],
            None,
        ),
        ("PipelineTasks", ["states:SendTask*"], ["*"], None),
    ]
