"""Recognized changes to network resources."""

from __future__ import annotations

from collections.abc import Mapping

from stacks.changes.approvals.known import GROUP, SUBNET, TAGS, VPC, Known
from stacks.changes.approvals.rules import (
    Rule,
    any_of,
    found_elsewhere,
    in_new_resources,
    own,
    passes,
)
from stacks.changes.effects.network import PEERS

_RULE: Mapping[str, Rule] = {
    "Description": passes,
    **dict.fromkeys(("GroupId", "GroupName", "IpProtocol", "FromPort", "ToPort", *PEERS), found_elsewhere),
}

NETWORK: Mapping[str, Known] = {
    "AWS::EC2::SecurityGroup": Known(
        {**TAGS, "SecurityGroupIngress": found_elsewhere, "SecurityGroupEgress": found_elsewhere}
        | {"GroupDescription": in_new_resources(passes), "VpcId": in_new_resources(own(VPC))},
        added="passes",
        removed="passes",
    ),
    "AWS::EC2::SecurityGroupIngress": Known(_RULE, added="passes", removed="passes"),
    "AWS::EC2::SecurityGroupEgress": Known(_RULE, added="passes", removed="passes"),
    "AWS::EC2::VPCEndpoint": Known(
        {
            **TAGS,
            "PolicyDocument": found_elsewhere,
            "ServiceName": in_new_resources(found_elsewhere),
            "SubnetIds": own(SUBNET),
            "RouteTableIds": own("AWS::EC2::RouteTable"),
            "SecurityGroupIds": in_new_resources(own(GROUP)),
            "VpcId": in_new_resources(own(VPC)),
            "PrivateDnsEnabled": any_of(True),
            "VpcEndpointType": in_new_resources(any_of("Interface", "Gateway")),
        },
        added="passes",
        removed="in its own network",
    ),
    "AWS::EC2::VPC": Known(TAGS),
    "AWS::EC2::Subnet": Known(TAGS, removed="passes"),
    "AWS::EC2::RouteTable": Known(TAGS, removed="passes"),
    "AWS::EC2::SubnetRouteTableAssociation": Known(removed="with its subnet"),
    "AWS::EC2::VPCGatewayAttachment": Known(removed="passes"),
    "AWS::EC2::FlowLog": Known(TAGS),
    **{f"AWS::EC2::{name}": Known(TAGS, removed="passes") for name in (
        "InternetGateway", "NatGateway", "EIP", "EgressOnlyInternetGateway", "Route", "VPCPeeringConnection",
        "TransitGatewayAttachment", "VPNGateway",
    )},
    "AWS::Lambda::Url": Known(removed="passes"),
}  # fmt: skip
