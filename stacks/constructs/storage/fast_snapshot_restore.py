"""A custom resource that enables fast snapshot restore for the dataset's snapshot in each of the nodes' zones.

CloudFormation does not provide a resource type for fast snapshot restore. The CDK's provider framework would need three
functions and a state machine, whereas this construct needs only one function.
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import CustomResource, Duration, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from stacks.artifacts.bundles import BundleFile
from stacks.constructs.lambda_function import named_log_group
from stacks.constructs.storage.volumes import zone_name
from stacks.constructs.suppressions import suppress


class FastSnapshotRestore(Construct):
    """The custom resource with its function, role and log group."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        deployment: str,
        snapshot_id: str,
        zones: Sequence[str],
        code: BundleFile,
        log_retention_days: int,
    ) -> None:
        super().__init__(scope, id_)
        stack = Stack.of(self)
        here = f"{stack.region}:{stack.account}"
        name = f"trainstack-{deployment}-fast-snapshot-restore"
        group, group_by_name = named_log_group(self, f"/aws/lambda/{name}", log_retention_days)
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        statements: list[tuple[str, list[str], list[str]]] = [
            (
                "SetFastSnapshotRestore",
                ["ec2:EnableFastSnapshotRestores", "ec2:DisableFastSnapshotRestores"],
                [f"arn:{stack.partition}:ec2:{stack.region}::snapshot/{snapshot_id}"],
            ),
            # This call does not support resource-level permissions: IAM ignores statements that name a resource.
            ("DescribeFastSnapshotRestore", ["ec2:DescribeFastSnapshotRestores"], ["*"]),
            # Use the name, because a reference to the function would create a cycle.
            ("InvokeSelf", ["lambda:InvokeFunction"], [f"arn:{stack.partition}:lambda:{here}:function:{name}"]),
            ("WriteLogs", ["logs:CreateLogStream", "logs:PutLogEvents"], [group.attr_arn]),
        ]
        for sid, actions, resources in statements:
            role.add_to_policy(iam.PolicyStatement(sid=sid, actions=actions, resources=resources))
        function = lambda_.Function(
            self,
            "Function",
            function_name=name,
            runtime=lambda_.Runtime.PYTHON_3_13,
            architecture=lambda_.Architecture.ARM_64,
            handler="fast_snapshot_restore.handler.handler",
            code=lambda_.Code.from_asset(str(code.path)),
            role=role,
            timeout=Duration.minutes(15),
            memory_size=256,
            log_group=group_by_name,
        )
        suppress(
            role.node.find_child("DefaultPolicy"),
            "AwsSolutions-IAM5",
            "Describe calls do not support resource-level permissions",
            applies_to=[r"Resource::\*"],
        )
        suppress(function, "AwsSolutions-L1", "The runtime is pinned to the version that the program is tested with")
        suppress(function, "CKV_AWS_115", "CloudFormation invokes the function for one event at a time")
        suppress(function, "CKV_AWS_116", "CloudFormation waits for the response, so a failure makes the deploy fail")
        suppress(function, "CKV_AWS_117", "The function only calls EC2 and does not use resources in the VPC")
        self.resource = CustomResource(
            self,
            "Default",
            service_token=function.function_arn,
            resource_type="Custom::FastSnapshotRestore",
            properties={"SnapshotId": snapshot_id, "AvailabilityZones": [zone_name(letter) for letter in zones]},
        )
        policy = role.node.find_child("DefaultPolicy").node.default_child
        assert isinstance(policy, iam.CfnPolicy)
        self.resource.node.add_dependency(policy)
