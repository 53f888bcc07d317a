"""VPC endpoints: gateways for S3 and DynamoDB, and an interface for each service that the nodes call, and no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aws_cdk import Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam

from stacks.config import DeploymentConfig


@dataclass(frozen=True)
class Interface:
    """An interface endpoint: the service, the call that needs it, where that is written, and when it is made."""

    id: str
    service: str
    call: str
    source: str
    needed: Callable[[DeploymentConfig], bool]


def handles_volumes(config: DeploymentConfig) -> bool:
    """Tell whether nodes look for volumes, and so call EC2."""
    volumes = (config.storage.dataset_volume, config.storage.checkpoint_volume, config.storage.shared_volume)
    return any(volume is not None for volume in volumes)


_SESSION_MANAGER = "https://docs.aws.amazon.com/systems-manager/latest/userguide/setup-create-vpc.html (2026-11)"
# Not here: sts (nobody calls it), kms (S3 and EBS call it themselves), monitoring (metrics come from log lines), ebs
# (blocks are read from the device), fsx (a mount needs DNS and Lustre's ports), ec2messages (the agent no longer needs
# it).
INTERFACES = (
    Interface(
        "Ssm",
        "ssm",
        "GetParameter for the run document; UpdateInstanceInformation of Session Manager's agent",
        f"bootstrap/steps/run_document.py; {_SESSION_MANAGER}",
        lambda config: True,
    ),
    Interface(
        "SsmMessages",
        "ssmmessages",
        "channels of Session Manager's shells, since there is no SSH",
        _SESSION_MANAGER,
        lambda config: config.node.session_manager,
    ),
    Interface("Logs", "logs", "PutLogEvents for events and metrics", "bootstrap/log_shipper.py", lambda config: True),
    Interface(
        "AutoScaling",
        "autoscaling",
        "CompleteLifecycleAction of a leaving node",
        "bootstrap/supervise/actor.py",
        lambda config: config.capacity.backend == "auto_scaling_group",
    ),
    Interface(
        "Ec2",
        "ec2",
        "DescribeVolumes, AttachVolume, and what copies of the checkpoint volume take",
        "bootstrap/steps/volumes.py",
        handles_volumes,
    ),
)
"""Every interface endpoint there may be."""


def make_endpoints(
    scope: Stack,
    *,
    config: DeploymentConfig,
    vpc_id: str,
    cidr: str,
    subnet_ids: Sequence[str],
    route_table_ids: Sequence[str],
) -> None:
    """Make the endpoints of a VPC, and the security group of their interfaces, which admits `cidr`."""
    doors = _group(scope, vpc_id, cidr)
    gateways = (("S3", "s3", _s3_policy(scope)), ("DynamoDb", "dynamodb", _dynamodb_policy(scope)))
    for name, service, policy in gateways:
        ec2.CfnVPCEndpoint(
            scope,
            name,
            vpc_id=vpc_id,
            vpc_endpoint_type="Gateway",
            service_name=f"com.amazonaws.{config.region}.{service}",
            route_table_ids=list(route_table_ids),
            policy_document=policy,
        )
    for interface in INTERFACES:
        if interface.needed(config):
            ec2.CfnVPCEndpoint(
                scope,
                interface.id,
                vpc_id=vpc_id,
                vpc_endpoint_type="Interface",
                service_name=f"com.amazonaws.{config.region}.{interface.service}",
                subnet_ids=list(subnet_ids),
                security_group_ids=[doors.ref],
                private_dns_enabled=True,
            )


def _group(scope: Stack, vpc_id: str, cidr: str) -> ec2.CfnSecurityGroup:
    return ec2.CfnSecurityGroup(
        scope,
        "Endpoints",
        group_description="VPC endpoints: TLS from the VPC",
        vpc_id=vpc_id,
        security_group_ingress=[
            ec2.CfnSecurityGroup.IngressProperty(
                ip_protocol="tcp", from_port=443, to_port=443, cidr_ip=cidr, description="TLS"
            )
        ],
        security_group_egress=[
            ec2.CfnSecurityGroup.EgressProperty(
                ip_protocol="tcp", from_port=443, to_port=443, cidr_ip=cidr, description="Answers only"
            )
        ],
    )


def _s3_policy(stack: Stack) -> iam.PolicyDocument:
    """Admit this account's buckets (data, and the CDK's assets), and those of the system and the SSM agent, read-only.

    Source: https://docs.aws.amazon.com/systems-manager/latest/userguide/ssm-agent-minimum-s3-permissions.html and
    https://docs.aws.amazon.com/linux/al2023/ug/deterministic-upgrades.html (2026-11).
    """
    own = iam.PolicyStatement(
        sid="OwnAccount",
        principals=[iam.AnyPrincipal()],
        actions=[
            *("s3:GetObject", "s3:GetObjectAttributes", "s3:GetObjectTagging", "s3:GetObjectVersion"),
            *("s3:GetBucketLocation", "s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:ListMultipartUploadParts"),
            *("s3:PutObject", "s3:PutObjectTagging", "s3:DeleteObject", "s3:AbortMultipartUpload"),
        ],
        resources=["*"],
        conditions={"StringEquals": {"aws:ResourceAccount": stack.account}},
    )
    aws_owned = iam.PolicyStatement(
        sid="OperatingSystemAndAgents",
        principals=[iam.AnyPrincipal()],
        actions=["s3:GetObject"],
        resources=[
            f"arn:{stack.partition}:s3:::{bucket}/*"
            for bucket in (
                f"al2023-repos-{stack.region}-de612dc2",
                f"amazon-ssm-{stack.region}",
                f"amazon-ssm-packages-{stack.region}",
                f"patch-baseline-snapshot-{stack.region}",
                f"aws-ssm-document-attachments-{stack.region}",
            )
        ],
    )
    return iam.PolicyDocument(statements=[own, aws_owned])


def _dynamodb_policy(stack: Stack) -> iam.PolicyDocument:
    """Admit reads and writes of this account's tables in this region; nobody's administration of them."""
    actions = ("GetItem", "BatchGetItem", "Query", "Scan", "PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem")
    tables = iam.PolicyStatement(
        sid="OwnTables",
        principals=[iam.AnyPrincipal()],
        actions=[f"dynamodb:{action}" for action in (*actions, "ConditionCheckItem", "DescribeTable")],
        resources=[f"arn:{stack.partition}:dynamodb:{stack.region}:{stack.account}:table/*"],
    )
    return iam.PolicyDocument(statements=[tables])
