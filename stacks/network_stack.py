"""NetworkStack: a private network that nodes can train in, and the ways out of it that they need and no others."""

from __future__ import annotations

from typing import Any

from aws_cdk import Aws, CfnTag, Fn, RemovalPolicy, Stack, Tags
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.config import DeploymentConfig

# Services that a node calls, each with the call that needs it. S3 has a gateway endpoint, which costs nothing.
# Source: https://docs.aws.amazon.com/systems-manager/latest/userguide/setup-create-vpc.html (2026-11), bootstrap/.
INTERFACE_ENDPOINTS = {
    "Ssm": ("ssm", "the supervisor reads the run document; Session Manager's agent registers"),
    "SsmMessages": ("ssmmessages", "Session Manager opens shells, since there is no SSH"),
    "Logs": ("logs", "events and metrics go to CloudWatch Logs"),
    "AutoScaling": ("autoscaling", "a leaving node completes its life-cycle action"),
}


class NetworkStack(Stack):
    """VPC, isolated subnets, endpoints, flow logs, and the nodes' security group."""

    def __init__(self, scope: Construct, id_: str, *, config: DeploymentConfig, **kwargs: Any) -> None:
        super().__init__(scope, id_, **kwargs)
        self.vpc = ec2.CfnVPC(
            self,
            "Vpc",
            cidr_block=config.network.cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=[CfnTag(key="Name", value=config.name)],
        )
        self.route_table = ec2.CfnRouteTable(self, "Routes", vpc_id=self.vpc.ref)
        self.subnets = [self._subnet(index, letter) for index, letter in enumerate(config.network.zones)]
        self.nodes = self._node_group()
        self._endpoints(config)
        self._flow_logs(config)
        Tags.of(self).add("trainstack:deployment", config.name)

    @property
    def subnet_ids(self) -> list[str]:
        """The isolated subnets, one an availability zone, in the order of the config."""
        return [subnet.ref for subnet in self.subnets]

    def _subnet(self, index: int, letter: str) -> ec2.CfnSubnet:
        """Make the isolated subnet of a zone: a sixteenth of the VPC's addresses, no route out."""
        name = f"Isolated{letter.upper()}"
        subnet = ec2.CfnSubnet(
            self,
            name,
            vpc_id=self.vpc.ref,
            availability_zone=Fn.join("", [Aws.REGION, letter]),
            cidr_block=Fn.select(index, Fn.cidr(self.vpc.attr_cidr_block, 16, "12")),
            map_public_ip_on_launch=False,
        )
        ec2.CfnSubnetRouteTableAssociation(
            self, f"{name}Routes", subnet_id=subnet.ref, route_table_id=self.route_table.ref
        )
        return subnet

    def _node_group(self) -> ec2.CfnSecurityGroup:
        """Make the nodes' group: everything between nodes, both directions as EFA demands, and TLS to the endpoints."""
        group = ec2.CfnSecurityGroup(
            self,
            "Nodes",
            group_description="Training nodes: free among themselves, TLS to AWS endpoints, nothing else",
            vpc_id=self.vpc.ref,
            security_group_egress=[
                ec2.CfnSecurityGroup.EgressProperty(
                    ip_protocol="tcp",
                    from_port=443,
                    to_port=443,
                    cidr_ip="0.0.0.0/0",
                    description="TLS; without a route out of the VPC this reaches its endpoints only",
                )
            ],
        )
        ec2.CfnSecurityGroupIngress(
            self, "NodesFromNodes", group_id=group.ref, source_security_group_id=group.ref, ip_protocol="-1"
        )
        ec2.CfnSecurityGroupEgress(
            self, "NodesToNodes", group_id=group.ref, destination_security_group_id=group.ref, ip_protocol="-1"
        )
        return group

    def _endpoints(self, config: DeploymentConfig) -> None:
        doors = ec2.CfnSecurityGroup(
            self,
            "Endpoints",
            group_description="VPC endpoints: TLS from the VPC",
            vpc_id=self.vpc.ref,
            security_group_ingress=[
                ec2.CfnSecurityGroup.IngressProperty(
                    ip_protocol="tcp", from_port=443, to_port=443, cidr_ip=config.network.cidr, description="TLS"
                )
            ],
            security_group_egress=[
                ec2.CfnSecurityGroup.EgressProperty(
                    ip_protocol="tcp",
                    from_port=443,
                    to_port=443,
                    cidr_ip=config.network.cidr,
                    description="Answers only",
                )
            ],
        )
        ec2.CfnVPCEndpoint(
            self,
            "S3",
            vpc_id=self.vpc.ref,
            vpc_endpoint_type="Gateway",
            service_name=f"com.amazonaws.{config.region}.s3",
            route_table_ids=[self.route_table.ref],
            policy_document=self._s3_policy(config.region),
        )
        for name, (service, _) in INTERFACE_ENDPOINTS.items():
            ec2.CfnVPCEndpoint(
                self,
                name,
                vpc_id=self.vpc.ref,
                vpc_endpoint_type="Interface",
                service_name=f"com.amazonaws.{config.region}.{service}",
                subnet_ids=self.subnet_ids,
                security_group_ids=[doors.ref],
                private_dns_enabled=True,
            )

    def _s3_policy(self, region: str) -> iam.PolicyDocument:
        """Admit this account's buckets, and those of the operating system and the SSM agent, read-only.

        Source: https://docs.aws.amazon.com/systems-manager/latest/userguide/ssm-agent-minimum-s3-permissions.html and
        https://docs.aws.amazon.com/linux/al2023/ug/deterministic-upgrades.html (2026-11).
        """
        own = iam.PolicyStatement(
            sid="OwnAccount",
            principals=[iam.AnyPrincipal()],
            actions=["s3:GetObject*", "s3:PutObject*", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:List*"],
            resources=["*"],
            conditions={"StringEquals": {"aws:ResourceAccount": self.account}},
        )
        aws_owned = iam.PolicyStatement(
            sid="OperatingSystemAndAgents",
            principals=[iam.AnyPrincipal()],
            actions=["s3:GetObject"],
            resources=[
                f"arn:{self.partition}:s3:::{bucket}/*"
                for bucket in (
                    f"al2023-repos-{region}-de612dc2",
                    f"amazon-ssm-{region}",
                    f"amazon-ssm-packages-{region}",
                    f"patch-baseline-snapshot-{region}",
                    f"aws-ssm-document-attachments-{region}",
                )
            ],
        )
        return iam.PolicyDocument(statements=[own, aws_owned])

    def _flow_logs(self, config: DeploymentConfig) -> None:
        group = logs.CfnLogGroup(self, "FlowLogs", retention_in_days=config.observability.log_retention_days)
        group.apply_removal_policy(RemovalPolicy.DESTROY)
        role = iam.Role(self, "FlowLogsRole", assumed_by=iam.ServicePrincipal("vpc-flow-logs.amazonaws.com"))
        role.add_to_policy(
            iam.PolicyStatement(
                sid="WriteFlowLogs",
                actions=["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"],
                resources=[group.attr_arn],
            )
        )
        ec2.CfnFlowLog(
            self,
            "Flows",
            resource_id=self.vpc.ref,
            resource_type="VPC",
            traffic_type="REJECT",
            log_destination_type="cloud-watch-logs",
            log_group_name=group.ref,
            deliver_logs_permission_arn=role.role_arn,
        )
