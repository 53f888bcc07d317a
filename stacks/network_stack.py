"""NetworkStack: a private network whose only routes lead to the AWS services that the nodes need."""

from __future__ import annotations

from typing import Any

from aws_cdk import Aws, CfnTag, Fn, Stack, Tags
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from stacks.config import DeploymentConfig
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.config.network import isolated_subnet
from stacks.constructs.network.flow_logs import create_flow_logs
from stacks.constructs.network.nat_gateway import create_nat_gateway
from stacks.constructs.network.vpc_endpoints import create_endpoints

# Each subnet has a sixteenth of the VPC's addresses. Up to six are for zones, and the last one is for a NAT gateway.
SUBNETS, SUBNET_BITS, PUBLIC_SUBNET = 16, "12", 15


class NetworkStack(Stack):
    """The VPC with isolated subnets, endpoints, flow logs and the nodes' security group.

    In an existing VPC, the stack creates only the missing parts. If `is_idle` is set, it creates only the parts
    that a file system needs.
    """

    def __init__(
        self, scope: Construct, id_: str, *, config: DeploymentConfig, is_idle: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        self._config = config
        self.vpc_id: str
        """The VPC's id."""
        self.subnet_ids: list[str]
        """The ids of the nodes' subnets, one per availability zone, in configuration order."""
        existing = config.network.existing
        if existing is None:
            self._make_vpc()
        else:
            self.vpc_id = existing.id
            self.subnet_ids = [subnet.id for subnet in existing.subnets]
        self.nodes = self._node_group()
        if existing is None and not is_idle:
            self._equip_vpc()
        elif existing is not None and existing.create_endpoints and not is_idle:
            self._make_endpoints(existing.cidr, existing.route_table_ids)
        Tags.of(self).add(DEPLOYMENT_TAG, config.name)

    def subnet_of(self, zone: str) -> str:
        """Return the id of the nodes' subnet in the zone with the given letter."""
        return dict(zip(self._config.network.subnet_zones, self.subnet_ids, strict=False))[zone]

    def _make_vpc(self) -> None:
        network = self._config.network
        self._vpc = ec2.CfnVPC(
            self,
            "Vpc",
            cidr_block=network.cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=[CfnTag(key="Name", value=self._config.name)],
        )
        self.vpc_id = self._vpc.ref
        self._route_table = ec2.CfnRouteTable(self, "Routes", vpc_id=self.vpc_id)
        self.subnet_ids = [self._subnet(index, letter).ref for index, letter in enumerate(network.zones)]

    def _equip_vpc(self) -> None:
        """Add endpoints, flow logs and, if configured, a NAT gateway to the deployment's VPC."""
        network = self._config.network
        self._make_endpoints(network.cidr, [self._route_table.ref])
        if network.flow_log_retention_days:
            create_flow_logs(self, vpc_id=self.vpc_id, retention_days=network.flow_log_retention_days)
        if network.nat:
            create_nat_gateway(
                self,
                name=self._config.name,
                vpc_id=self.vpc_id,
                availability_zone=Fn.join("", [Aws.REGION, network.zones[0]]),
                cidr_block=self._cidr(PUBLIC_SUBNET),
                private_route_table_id=self._route_table.ref,
            )

    def _make_endpoints(self, cidr: str, route_table_ids: list[str]) -> None:
        create_endpoints(
            self,
            config=self._config,
            vpc_id=self.vpc_id,
            cidr=cidr,
            subnet_ids=self.subnet_ids,
            route_table_ids=route_table_ids,
        )

    def _cidr(self, index: int) -> str:
        return Fn.select(index, Fn.cidr(self._vpc.attr_cidr_block, SUBNETS, SUBNET_BITS))

    def _subnet(self, index: int, letter: str) -> ec2.CfnSubnet:
        """Create the isolated subnet for a zone."""
        name = isolated_subnet(letter)
        subnet = ec2.CfnSubnet(
            self,
            name,
            vpc_id=self.vpc_id,
            availability_zone=Fn.join("", [Aws.REGION, letter]),
            cidr_block=self._cidr(index),
            map_public_ip_on_launch=False,
        )
        ec2.CfnSubnetRouteTableAssociation(
            self, f"{name}Routes", subnet_id=subnet.ref, route_table_id=self._route_table.ref
        )
        return subnet

    def _node_group(self) -> ec2.CfnSecurityGroup:
        """Create the nodes' security group, which allows all traffic between nodes (for EFA) and TLS to endpoints."""
        group = ec2.CfnSecurityGroup(
            self,
            "Nodes",
            group_description="Training nodes: all traffic between nodes, TLS to AWS endpoints, nothing else",
            vpc_id=self.vpc_id,
            security_group_egress=[
                ec2.CfnSecurityGroup.EgressProperty(
                    ip_protocol="tcp",
                    from_port=443,
                    to_port=443,
                    cidr_ip="0.0.0.0/0",
                    description="TLS; reaches only the endpoints if the VPC has no route out",
                )
            ],
        )
        ec2.CfnSecurityGroupIngress(
            self,
            "NodesFromNodes",
            group_id=group.ref,
            source_security_group_id=group.ref,
            ip_protocol="-1",
            description="All traffic from nodes of the deployment, as EFA requires",
        )
        ec2.CfnSecurityGroupEgress(
            self,
            "NodesToNodes",
            group_id=group.ref,
            destination_security_group_id=group.ref,
            ip_protocol="-1",
            description="All traffic to nodes of the deployment, as EFA requires",
        )
        return group
