"""Fast snapshot restore of the dataset's snapshot in each zone of the nodes, as a custom resource of the project's own.

CloudFormation has no type for it. Not the library's provider framework either: that is three functions and a state
machine for what one function does.
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import CustomResource, Duration, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.bundles import BundleFile
from stacks.constructs.accepted_findings import accept
from stacks.constructs.volumes import zone_name


class FastSnapshotRestore(Construct):
    """Custom resource, its function, its role, its log group."""

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
        log_group = logs.CfnLogGroup(
            self, "Logs", log_group_name=f"/aws/lambda/{name}", retention_in_days=log_retention_days
        )
        log_group.apply_removal_policy(RemovalPolicy.DESTROY)
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        statements: list[tuple[str, list[str], list[str]]] = [
            (
                "SwitchFastRestores",
                ["ec2:EnableFastSnapshotRestores", "ec2:DisableFastSnapshotRestores"],
                [f"arn:{stack.partition}:ec2:{stack.region}::snapshot/{snapshot_id}"],
            ),
            # No resource level: IAM ignores statements about this call that name a resource.
            ("SeeFastRestores", ["ec2:DescribeFastSnapshotRestores"], ["*"]),
            # By its name: the function's own reference here would be a cycle.
            ("GoOnWaiting", ["lambda:InvokeFunction"], [f"arn:{stack.partition}:lambda:{here}:function:{name}"]),
            ("WriteLogs", ["logs:CreateLogStream", "logs:PutLogEvents"], [log_group.attr_arn]),
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
            log_group=logs.LogGroup.from_log_group_name(self, "LogsByName", log_group.ref),
        )
        accept(
            role.node.find_child("DefaultPolicy"),
            "AwsSolutions-IAM5",
            "Describe calls have no resource level",
            applies_to=[r"Resource::\*"],
        )
        accept(function, "AwsSolutions-L1", "The runtime that the program is tested on; a newer one is our change")
        accept(
            function,
            "CKV_AWS_115",
            "CloudFormation calls it, one event at a time",
        )
        accept(
            function,
            "CKV_AWS_116",
            "CloudFormation waits for its answer: a failure fails the deploy",
        )
        accept(function, "CKV_AWS_117", "It calls EC2 only, and reads nothing that is in the VPC")
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
