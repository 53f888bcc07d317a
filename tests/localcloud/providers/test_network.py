"""EC2 network types, created, updated and deleted in moto."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import pytest

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers import registry

Lifecycle = Callable[..., None]


def ec2(operation: str, **arguments: Any) -> Any:
    return getattr(boto3.client("ec2"), operation)(**arguments)


def tags(resource: str) -> dict[str, str]:
    found = ec2("describe_tags", Filters=[{"Name": "resource-id", "Values": [resource]}])["Tags"]
    return {tag["Key"]: tag["Value"] for tag in found}


def own_tags(resource: str) -> set[str]:
    return set(tags(resource)) - {"team", "aws:cloudformation:stack-name"}


TAGGED = {"Tags": [{"Key": "Name", "Value": "mine"}, {"Key": "old", "Value": "1"}]}
RETAGGED = ({"Tags": [{"Key": "Name", "Value": "other"}]}, own_tags, {"Name"})


def test_vpc(lifecycle: Lifecycle) -> None:
    def attribute(name: str) -> Callable[[str], Any]:
        key = name[0].upper() + name[1:]
        return lambda vpc: ec2("describe_vpc_attribute", VpcId=vpc, Attribute=name)[key]["Value"]

    lifecycle(
        "AWS::EC2::VPC",
        {"CidrBlock": "10.0.0.0/16", "EnableDnsHostnames": "true", "InstanceTenancy": "dedicated", **TAGGED},
        ({}, attribute("enableDnsHostnames"), True),
        ({"EnableDnsSupport": False}, attribute("enableDnsSupport"), False),
        ({"EnableDnsSupport": None, "EnableDnsHostnames": None}, attribute("enableDnsSupport"), True),
        ({}, attribute("enableDnsHostnames"), False),
        (
            {"InstanceTenancy": "default"},
            lambda vpc: ec2("describe_vpcs", VpcIds=[vpc])["Vpcs"][0]["InstanceTenancy"],
            "default",
        ),
        RETAGGED,
        ref=r"vpc-\w+",
        tags=tags,
    )


def test_subnet(lifecycle: Lifecycle, world: Any) -> None:
    def look(subnet: str) -> tuple[bool, bool]:
        found = ec2("describe_subnets", SubnetIds=[subnet])["Subnets"][0]
        return found["MapPublicIpOnLaunch"], found["AssignIpv6AddressOnCreation"]

    lifecycle(
        "AWS::EC2::Subnet",
        {"VpcId": world.vpc, "CidrBlock": "10.8.9.0/24", "AvailabilityZone": "us-east-1b", **TAGGED},
        ({"MapPublicIpOnLaunch": True}, look, (True, False)),
        ({"MapPublicIpOnLaunch": None, "AssignIpv6AddressOnCreation": "true"}, look, (False, True)),
        RETAGGED,
        ref=r"subnet-\w+",
        tags=tags,
    )


def test_route_table(lifecycle: Lifecycle, world: Any) -> None:
    lifecycle("AWS::EC2::RouteTable", {"VpcId": world.vpc, **TAGGED}, RETAGGED, ref=r"rtb-\w+", tags=tags)


def test_route(lifecycle: Lifecycle, world: Any) -> None:
    table = world.route_table()
    same_call = "moto requires a resource of each target type; the call is the same"
    others = registry()["AWS::EC2::Route"].updatable - {"GatewayId"}

    def gateway(_: str) -> str:
        routes = ec2("describe_route_tables", RouteTableIds=[table])["RouteTables"][0]["Routes"]
        found: str = next(r["GatewayId"] for r in routes if r["DestinationCidrBlock"] == "0.0.0.0/0")
        return found

    lifecycle(
        "AWS::EC2::Route",
        {"RouteTableId": table, "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": world.gateway()},
        ({"GatewayId": world.gateway(1)}, gateway, world.gateway(1)),
        ref=rf"{table}\|0\.0\.0\.0/0",
        unchanged=dict.fromkeys(others, same_call),
    )


def test_route_requires_one_destination(world: Any, context: Any) -> None:
    properties = {"RouteTableId": world.route_table(), "GatewayId": world.gateway()}
    with pytest.raises(ResourceFailure, match="exactly one of DestinationCidrBlock"):
        registry()["AWS::EC2::Route"].create(context(), properties)


def test_subnet_route_table_association(lifecycle: Lifecycle, world: Any) -> None:
    lifecycle(
        "AWS::EC2::SubnetRouteTableAssociation",
        {"SubnetId": world.subnet(), "RouteTableId": world.route_table()},
        ref=r"rtbassoc-\w+",
    )


def test_internet_gateway(lifecycle: Lifecycle) -> None:
    lifecycle("AWS::EC2::InternetGateway", TAGGED, RETAGGED, ref=r"igw-\w+", tags=tags)


def test_gateway_attachment(lifecycle: Lifecycle, world: Any) -> None:
    def attached(_: str) -> list[str]:
        filters = [{"Name": "attachment.vpc-id", "Values": [world.vpc]}]
        return [g["InternetGatewayId"] for g in ec2("describe_internet_gateways", Filters=filters)["InternetGateways"]]

    lifecycle(
        "AWS::EC2::VPCGatewayAttachment",
        {"VpcId": world.vpc, "InternetGatewayId": world.gateway()},
        ({"InternetGatewayId": world.gateway(1)}, attached, [world.gateway(1)]),
        ref=rf"IGW\|{world.vpc}",
    )


def test_elastic_ip(lifecycle: Lifecycle, world: Any) -> None:
    def allocation(address: str) -> str:
        found: str = ec2("describe_addresses", PublicIps=[address])["Addresses"][0]["AllocationId"]
        return found

    def instance(address: str) -> Any:
        return ec2("describe_addresses", PublicIps=[address])["Addresses"][0].get("InstanceId", "")

    lifecycle(
        "AWS::EC2::EIP",
        {"Domain": "vpc", **TAGGED},
        ({"InstanceId": world.instance()}, instance, world.instance()),
        ({"InstanceId": None}, instance, ""),
        ({"InstanceId": world.instance()}, instance, world.instance()),
        ({"Tags": None}, lambda address: own_tags(allocation(address)), set()),
        ref=r"\d+\.\d+\.\d+\.\d+",
        tags=lambda address: tags(allocation(address)),
    )


def test_nat_gateway(lifecycle: Lifecycle, world: Any) -> None:
    lifecycle(
        "AWS::EC2::NatGateway",
        {"SubnetId": world.subnet(), "AllocationId": world.address, **TAGGED},
        RETAGGED,
        ref=r"nat-\w+",
        tags=tags,
    )


def endpoint(identity: str) -> dict[str, Any]:
    found: dict[str, Any] = ec2("describe_vpc_endpoints", VpcEndpointIds=[identity])["VpcEndpoints"][0]
    return found


NOT_STORED = {
    "PrivateDnsEnabled": "moto's ModifyVpcEndpoint does not store it",
    "IpAddressType": "moto's ModifyVpcEndpoint does not store it",
    "DnsOptions": "moto's ModifyVpcEndpoint does not store it",
}


def test_gateway_endpoint(lifecycle: Lifecycle, world: Any) -> None:
    lifecycle(
        "AWS::EC2::VPCEndpoint",
        {
            "VpcId": world.vpc,
            "ServiceName": "com.amazonaws.us-east-1.s3",
            "VpcEndpointType": "Gateway",
            "RouteTableIds": [world.route_table()],
            "PolicyDocument": {"Statement": []},
            **TAGGED,
        },
        ({"PolicyDocument": {"Id": "x"}}, lambda identity: endpoint(identity)["PolicyDocument"], '{"Id": "x"}'),
        RETAGGED,
        ref=r"vpce-\w+",
        tags=tags,
        unchanged={
            **NOT_STORED,
            "RouteTableIds": "tested separately: moto cannot delete the endpoint afterward",
            "SubnetIds": "only interface endpoints have it",
            "SecurityGroupIds": "only interface endpoints have it",
        },
    )


def test_gateway_endpoint_changes_its_route_tables(world: Any, context: Any) -> None:
    old = {
        "VpcId": world.vpc,
        "ServiceName": "com.amazonaws.us-east-1.s3",
        "VpcEndpointType": "Gateway",
        "RouteTableIds": [world.route_table(), world.route_table(1)],
    }
    provider = registry()["AWS::EC2::VPCEndpoint"]
    made = provider.create(context(), old)
    new = {**old, "RouteTableIds": [world.route_table(1), world.route_table(2)]}
    provider.update(context(), made.physical_id, old, new)
    assert endpoint(made.physical_id)["RouteTableIds"] == [world.route_table(1), world.route_table(2)]


def test_interface_endpoint(lifecycle: Lifecycle, world: Any) -> None:
    def look(identity: str) -> tuple[list[str], list[str]]:
        found = endpoint(identity)
        return found["SubnetIds"], [group["GroupId"] for group in found["Groups"]]

    lifecycle(
        "AWS::EC2::VPCEndpoint",
        {
            "VpcId": world.vpc,
            "ServiceName": "com.amazonaws.us-east-1.ssm",
            "VpcEndpointType": "Interface",
            "SubnetIds": [world.subnet()],
            "SecurityGroupIds": [world.group()],
            "PrivateDnsEnabled": True,
        },
        (
            {"SubnetIds": [world.subnet(1)], "SecurityGroupIds": [world.group(1)]},
            look,
            ([world.subnet(1)], [world.group(1)]),
        ),
        ref=r"vpce-\w+",
        unchanged={
            **NOT_STORED,
            "RouteTableIds": "only gateway endpoints have it",
            "PolicyDocument": "tested with the gateway endpoint",
            "Tags": "tested with the gateway endpoint",
        },
    )


def test_flow_log(lifecycle: Lifecycle, world: Any) -> None:
    lifecycle(
        "AWS::EC2::FlowLog",
        {
            "ResourceId": world.vpc,
            "ResourceType": "VPC",
            "TrafficType": "REJECT",
            "LogDestinationType": "cloud-watch-logs",
            "LogGroupName": world.log_group,
            "DeliverLogsPermissionArn": world.role_arn(),
            "MaxAggregationInterval": "60",
            **TAGGED,
        },
        RETAGGED,
        ref=r"fl-\w+",
        tags=tags,
    )


def rules(group: str, direction: str) -> set[tuple[str, Any, str]]:
    found = ec2("describe_security_groups", GroupIds=[group])["SecurityGroups"][0]
    key = "IpPermissionsEgress" if direction == "egress" else "IpPermissions"
    return {
        (item["IpProtocol"], item.get("FromPort"), end.get("CidrIp") or end.get("GroupId"))
        for item in found[key]
        for end in [*item["IpRanges"], *item["UserIdGroupPairs"]]
    }


EVERYWHERE = ("-1", -1, "0.0.0.0/0")


def test_security_group(lifecycle: Lifecycle, world: Any) -> None:
    https = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": "443", "CidrIp": "10.0.0.0/8"}
    lifecycle(
        "AWS::EC2::SecurityGroup",
        {"GroupDescription": "nodes", "VpcId": world.vpc, "SecurityGroupIngress": [https], **TAGGED},
        ({}, lambda group: rules(group, "egress"), {("-1", None, "0.0.0.0/0")}),
        ({}, lambda group: rules(group, "ingress"), {("tcp", 443, "10.0.0.0/8")}),
        (
            {"SecurityGroupIngress": [{**https, "CidrIp": "10.1.0.0/16"}]},
            lambda group: rules(group, "ingress"),
            {("tcp", 443, "10.1.0.0/16")},
        ),
        ({"SecurityGroupEgress": [https]}, lambda group: rules(group, "egress"), {("tcp", 443, "10.0.0.0/8")}),
        ({"SecurityGroupEgress": None}, lambda group: rules(group, "egress"), {("-1", None, "0.0.0.0/0")}),
        RETAGGED,
        ref=r"sg-\w+",
        tags=tags,
    )


def test_template_egress_replaces_the_default_at_creation(world: Any, context: Any) -> None:
    closed = {"IpProtocol": "icmp", "FromPort": 252, "ToPort": 86, "CidrIp": "255.255.255.255/32"}
    properties = {"GroupDescription": "closed", "VpcId": world.vpc, "SecurityGroupEgress": [closed]}
    made = registry()["AWS::EC2::SecurityGroup"].create(context(), properties)
    assert rules(made.physical_id, "egress") == {("icmp", 252, "255.255.255.255/32")}


def test_inline_changes_keep_the_rules_of_other_resources(world: Any, context: Any) -> None:
    group = registry()["AWS::EC2::SecurityGroup"]
    old = {"GroupDescription": "d", "VpcId": world.vpc}
    made = group.create(context(), old)
    mine = {"GroupId": made.physical_id, "IpProtocol": "-1", "SourceSecurityGroupId": made.physical_id}
    registry()["AWS::EC2::SecurityGroupIngress"].create(context("Self"), mine)
    new = {**old, "SecurityGroupIngress": [{"IpProtocol": "tcp", "FromPort": 1, "ToPort": 1, "CidrIp": "10.0.0.0/8"}]}
    group.update(context(), made.physical_id, old, new)
    group.update(context(), made.physical_id, new, old)
    assert {end for _, _, end in rules(made.physical_id, "ingress")} == {made.physical_id}


@pytest.mark.parametrize("direction", ["Ingress", "Egress"])
def test_security_group_rule(direction: str, lifecycle: Lifecycle, world: Any) -> None:
    other_side = {"Ingress": "SourceSecurityGroupId", "Egress": "DestinationSecurityGroupId"}[direction]

    def described(rule: str) -> Any:
        found = ec2("describe_security_group_rules", SecurityGroupRuleIds=[rule])["SecurityGroupRules"]
        return found[0].get("Description", "")

    lifecycle(
        f"AWS::EC2::SecurityGroup{direction}",
        {"GroupId": world.group(), "IpProtocol": "-1", other_side: world.group(1)},
        ref=r"sgr-\w+",
        unchanged={"Description": "moto does not store the description of a group pair; the next case checks it"},
    )
    lifecycle(
        f"AWS::EC2::SecurityGroup{direction}",
        {"GroupId": world.group(), "IpProtocol": "tcp", "FromPort": 1, "ToPort": 2, "CidrIp": "10.0.0.0/8"},
        ({"Description": "why"}, described, "why"),
        ref=r"sgr-\w+",
    )


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"IpProtocol": "tcp"}, "exactly one of CidrIp"),
        ({"IpProtocol": "tcp", "CidrIp": "10.0.0.0/8", "CidrIpv6": "::/0"}, "exactly one of CidrIp"),
        ({"IpProtocol": "tcp", "CidrIp": "10.0.0.0/8", "Port": 1}, "unknown keys: Port"),
    ],
)
def test_invalid_rule_fails_and_deletes_the_group(rule: Any, problem: str, world: Any, context: Any) -> None:
    properties = {"GroupDescription": "d", "GroupName": "wrong", "VpcId": world.vpc, "SecurityGroupIngress": [rule]}
    with pytest.raises(ResourceFailure, match=problem):
        registry()["AWS::EC2::SecurityGroup"].create(context(), properties)
    groups = ec2("describe_security_groups", Filters=[{"Name": "group-name", "Values": ["wrong"]}])["SecurityGroups"]
    assert groups == []
