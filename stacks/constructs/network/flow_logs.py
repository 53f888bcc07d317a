"""VPC flow logs for rejected connections, in an encrypted log group with a retention period."""

from __future__ import annotations

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs


def create_flow_logs(scope: Stack, *, vpc_id: str, retention_days: int) -> None:
    """Log connections that security groups or network ACLs reject.

    Accepted connections are not logged because they are expected, and logs are billed per GB.
    """
    group = logs.CfnLogGroup(scope, "FlowLogs", retention_in_days=retention_days, kms_key_id=_log_key(scope).key_arn)
    group.apply_removal_policy(RemovalPolicy.DESTROY)
    role = iam.Role(scope, "FlowLogsRole", assumed_by=iam.ServicePrincipal("vpc-flow-logs.amazonaws.com"))
    role.add_to_policy(
        iam.PolicyStatement(
            sid="WriteFlowLogs",
            actions=["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"],
            resources=[group.attr_arn],
        )
    )
    ec2.CfnFlowLog(
        scope,
        "Flows",
        resource_id=vpc_id,
        resource_type="VPC",
        traffic_type="REJECT",
        log_destination_type="cloud-watch-logs",
        log_group_name=group.ref,
        deliver_logs_permission_arn=role.role_arn,
    )


def _log_key(scope: Stack) -> kms.Key:
    """Create the log group's key. It cannot be the data key because the data key's stack depends on the network.

    Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/encrypt-log-data-kms.html (2026-11).
    """
    key = kms.Key(
        scope,
        "FlowLogsKey",
        description="Flow logs of the nodes' network",
        enable_key_rotation=True,
        removal_policy=RemovalPolicy.DESTROY,
    )
    groups = f"arn:{scope.partition}:logs:{scope.region}:{scope.account}:log-group:{scope.stack_name}-*"
    key.add_to_resource_policy(
        iam.PolicyStatement(
            sid="LogsOfThisStack",
            principals=[iam.ServicePrincipal(f"logs.{scope.region}.amazonaws.com")],
            actions=["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"],
            resources=["*"],
            conditions={"ArnLike": {"kms:EncryptionContext:aws:logs:arn": groups}},
        )
    )
    return key
