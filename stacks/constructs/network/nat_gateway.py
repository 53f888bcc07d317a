"""The NAT gateway for deployments with internet access."""

from __future__ import annotations

from aws_cdk import CfnTag, Stack
from aws_cdk import aws_ec2 as ec2


def create_nat_gateway(
    scope: Stack, *, name: str, vpc_id: str, availability_zone: str, cidr_block: str, private_route_table_id: str
) -> None:
    """Route the private subnets through a NAT gateway in a separate public subnet.

    One gateway serves all zones because cross-zone traffic costs less than a gateway in each zone. Nodes need the
    gateway to install packages, but not to train.
    """
    gateway = ec2.CfnInternetGateway(scope, "InternetGateway", tags=[CfnTag(key="Name", value=name)])
    attachment = ec2.CfnVPCGatewayAttachment(
        scope, "InternetGatewayAttachment", vpc_id=vpc_id, internet_gateway_id=gateway.ref
    )
    subnet = ec2.CfnSubnet(
        scope,
        "Public",
        vpc_id=vpc_id,
        availability_zone=availability_zone,
        cidr_block=cidr_block,
        map_public_ip_on_launch=False,
        tags=[CfnTag(key="Name", value=f"{name}-public")],
    )
    table = ec2.CfnRouteTable(scope, "PublicRoutes", vpc_id=vpc_id)
    ec2.CfnSubnetRouteTableAssociation(scope, "PublicRoutesOfPublic", subnet_id=subnet.ref, route_table_id=table.ref)
    out = ec2.CfnRoute(
        scope, "PublicOut", route_table_id=table.ref, destination_cidr_block="0.0.0.0/0", gateway_id=gateway.ref
    )
    out.add_resource_dependency(attachment)
    address = ec2.CfnEIP(scope, "NatAddress", domain="vpc")
    address.add_resource_dependency(attachment)
    nat = ec2.CfnNatGateway(scope, "Nat", subnet_id=subnet.ref, allocation_id=address.attr_allocation_id)
    nat.add_resource_dependency(out)
    ec2.CfnRoute(
        scope,
        "Out",
        route_table_id=private_route_table_id,
        destination_cidr_block="0.0.0.0/0",
        nat_gateway_id=nat.ref,
    )
