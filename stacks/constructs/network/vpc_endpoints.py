"""VPC endpoints: gateway endpoints for S3 and DynamoDB, and interface endpoints for other services that nodes call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aws_cdk import Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam

from stacks.config import DeploymentConfig
from stacks.config.network import GATEWAYS
from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS


@dataclass(frozen=True)
class Interface:
    """An interface endpoint: its service, the calls that need it, the code that makes them, and when it is created."""

    id: str
    service: str
    call: str
    source: str
    needed: Callable[[DeploymentConfig], bool]


def handles_volumes(config: DeploymentConfig) -> bool:
    """Return True if nodes look up volumes, which requires EC2 calls."""
    volumes = (config.storage.dataset_volume, config.storage.checkpoint_volume, config.storage.shared_volume)
    return any(volume is not None for volume in volumes)


def _is_fleet(config: DeploymentConfig) -> bool:
    return config.engine == "fleet"


def _has_eks(config: DeploymentConfig) -> bool:
    return config.has_eks_stack


_PRIVATE_EKS = "https://docs.aws.amazon.com/eks/latest/userguide/private-clusters.html (2026-11)"
_SESSION_MANAGER = "https://docs.aws.amazon.com/systems-manager/latest/userguide/setup-create-vpc.html (2026-11)"
# Endpoints that are not needed: sts (not called), kms (S3 and EBS call it themselves), monitoring (metrics come from
# log lines), ebs (nodes read blocks from the device), fsx (mounting needs only DNS and Lustre's ports), and ec2messages
# (the agent no longer uses it).
INTERFACES = (
    Interface(
        "Ssm",
        "ssm",
        "GetParameter for the run document; UpdateInstanceInformation from the SSM agent",
        f"bootstrap/boot_steps/run_document.py; {_SESSION_MANAGER}",
        lambda config: True,
    ),
    Interface(
        "SsmMessages",
        "ssmmessages",
        "channels for Session Manager shells, which replace SSH",
        _SESSION_MANAGER,
        lambda config: config.node.session_manager,
    ),
    Interface("Logs", "logs", "PutLogEvents: events, metrics", "bootstrap/events/shipper.py", _is_fleet),
    Interface(
        "AutoScaling",
        "autoscaling",
        "CompleteLifecycleAction from a terminating node",
        "bootstrap/supervise/leaving.py",
        lambda config: _is_fleet(config) and BACK_ENDS[config.capacity.backend].has_lifecycle_hooks,
    ),
    Interface(
        "Ec2",
        "ec2",
        "DescribeVolumes, AttachVolume, and the calls that copy the checkpoint volume",
        "bootstrap/boot_steps/volumes.py",
        lambda config: handles_volumes(config) or _has_eks(config),
    ),
    Interface(
        "Pcs",
        "pcs",
        "RegisterComputeNodeGroupInstance from PCS's agent",
        "https://docs.aws.amazon.com/pcs/latest/userguide/vpc-interface-endpoints.html (2026-11)",
        lambda config: config.engine == "pcs",
    ),
    Interface("EcrApi", "ecr.api", "image pulls by the kubelet", _PRIVATE_EKS, _has_eks),
    Interface("EcrDkr", "ecr.dkr", "image pulls by the kubelet", _PRIVATE_EKS, _has_eks),
    Interface("Eks", "eks", "DescribeCluster from nodes", _PRIVATE_EKS, _has_eks),
    Interface("EksAuth", "eks-auth", "AssumeRoleForPodIdentity from the Pod Identity agent", _PRIVATE_EKS, _has_eks),
    Interface("Sts", "sts", "GetCallerIdentity from nodes", _PRIVATE_EKS, _has_eks),
)
"""All interface endpoints."""


def needed_endpoints(config: DeploymentConfig) -> list[str]:
    """Return the services for which nodes need an endpoint or another route, such as `s3`."""
    return [*GATEWAYS, *(interface.service for interface in INTERFACES if interface.needed(config))]


def created_endpoints(config: DeploymentConfig) -> list[str]:
    """Return the services whose endpoints the deployment creates."""
    vpc = config.network.existing
    return [service for service in needed_endpoints(config) if vpc is None or vpc.creates_endpoint(service)]


def create_endpoints(
    scope: Stack,
    *,
    config: DeploymentConfig,
    vpc_id: str,
    cidr: str,
    subnet_ids: Sequence[str],
    route_table_ids: Sequence[str],
) -> None:
    """Create the endpoints in a VPC, and the security group for their interfaces, which allows traffic from `cidr`."""
    services = created_endpoints(config)
    gateways = (("S3", "s3", _s3_policy), ("DynamoDb", "dynamodb", _dynamodb_policy))
    for name, service, policy in gateways:
        if service not in services:
            continue
        ec2.CfnVPCEndpoint(
            scope,
            name,
            vpc_id=vpc_id,
            vpc_endpoint_type="Gateway",
            service_name=f"com.amazonaws.{config.region}.{service}",
            route_table_ids=list(route_table_ids),
            policy_document=policy(scope),
        )
    interfaces = [interface for interface in INTERFACES if interface.service in services]
    if interfaces:
        group = _security_group(scope, vpc_id, cidr)
        for interface in interfaces:
            ec2.CfnVPCEndpoint(
                scope,
                interface.id,
                vpc_id=vpc_id,
                vpc_endpoint_type="Interface",
                service_name=f"com.amazonaws.{config.region}.{interface.service}",
                subnet_ids=list(subnet_ids),
                security_group_ids=[group.ref],
                private_dns_enabled=True,
                policy_document=_own_principals_policy(scope),
            )


def _security_group(scope: Stack, vpc_id: str, cidr: str) -> ec2.CfnSecurityGroup:
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
                ip_protocol="tcp", from_port=443, to_port=443, cidr_ip=cidr, description="TLS responses only"
            )
        ],
    )


def _own_principals_policy(stack: Stack) -> iam.PolicyDocument:
    """Allow only callers from this account, so nodes cannot use another account's credentials to send data there.

    The S3 endpoint does not have this condition, because package managers read repositories with unsigned requests.
    Its policy limits the buckets instead.

    Source: https://docs.aws.amazon.com/vpc/latest/privatelink/vpc-endpoints-access.html (2026-11); docs/security.md
    contains the sources for the services, including `ssmmessages`, which AWS documents together with the other
    endpoints for Systems Manager. `check --aws` verifies that each service supports policies.
    """
    own = iam.PolicyStatement(
        sid="OwnPrincipals",
        principals=[iam.AnyPrincipal()],
        actions=["*"],
        resources=["*"],
        conditions={"StringEquals": {"aws:PrincipalAccount": stack.account}},
    )
    return iam.PolicyDocument(statements=[own])


def _s3_policy(stack: Stack) -> iam.PolicyDocument:
    """Allow access to this account's buckets (data and CDK assets).

    Also allow read access to the buckets that the operating system and the SSM agent use.

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
    """Allow reading and writing items in this account's tables in this region, but not managing tables."""
    actions = ("GetItem", "BatchGetItem", "Query", "Scan", "PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem")
    tables = iam.PolicyStatement(
        sid="OwnTables",
        principals=[iam.AnyPrincipal()],
        actions=[f"dynamodb:{action}" for action in (*actions, "ConditionCheckItem", "DescribeTable")],
        resources=[f"arn:{stack.partition}:dynamodb:{stack.region}:{stack.account}:table/*"],
    )
    return iam.PolicyDocument(statements=[tables])
