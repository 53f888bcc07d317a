"""NetworkStack: no way out, and exactly the doors that the nodes' calls need."""

from __future__ import annotations

import ipaddress
from typing import Any

from .conftest import Assembly

STACK = "NetworkStack"


def test_security_group_has_self_rules_in_both_directions(demo: Assembly) -> None:
    """EFA's traffic needs both; a group that only lets everything out drops the egress rule to itself."""
    (ingress,) = demo.of_type(STACK, "AWS::EC2::SecurityGroupIngress").values()
    (egress,) = demo.of_type(STACK, "AWS::EC2::SecurityGroupEgress").values()
    inward, outward = ingress["Properties"], egress["Properties"]
    assert inward["IpProtocol"] == outward["IpProtocol"] == "-1"
    assert inward["GroupId"] == inward["SourceSecurityGroupId"]
    assert outward["GroupId"] == outward["DestinationSecurityGroupId"] == inward["GroupId"]


def test_nodes_reach_tls_only(demo: Assembly) -> None:
    nodes = demo.resources(STACK)["Nodes"]["Properties"]
    assert "SecurityGroupIngress" not in nodes
    assert [(rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) for rule in nodes["SecurityGroupEgress"]] == [
        ("tcp", 443, 443)
    ]


def test_interface_endpoints_are_those_of_the_nodes_calls(demo: Assembly) -> None:
    endpoints = [item["Properties"] for item in demo.of_type(STACK, "AWS::EC2::VPCEndpoint").values()]
    interface = {item["ServiceName"].rsplit(".", 1)[1] for item in endpoints if item["VpcEndpointType"] == "Interface"}
    assert interface == {"ssm", "ssmmessages", "logs", "autoscaling"}
    assert all(item["PrivateDnsEnabled"] for item in endpoints if item["VpcEndpointType"] == "Interface")


def test_s3_endpoint_admits_the_own_account_and_aws_reads(demo: Assembly) -> None:
    (gateway,) = (
        item["Properties"]
        for item in demo.of_type(STACK, "AWS::EC2::VPCEndpoint").values()
        if item["Properties"]["VpcEndpointType"] == "Gateway"
    )
    own, from_aws = gateway["PolicyDocument"]["Statement"]
    assert own["Condition"] == {"StringEquals": {"aws:ResourceAccount": {"Ref": "AWS::AccountId"}}}
    assert from_aws["Action"] == "s3:GetObject"
    for resource in from_aws["Resource"]:
        name = resource["Fn::Join"][1][-1]
        assert name.endswith("/*")
        assert "*" not in name.removesuffix("/*"), "a bucket of AWS's is named, not guessed at"


def test_one_private_subnet_a_zone(demo: Assembly) -> None:
    subnets = [item["Properties"] for item in demo.of_type(STACK, "AWS::EC2::Subnet").values()]
    zones = [item["AvailabilityZone"]["Fn::Join"][1] for item in subnets]
    assert zones == [[{"Ref": "AWS::Region"}, "a"], [{"Ref": "AWS::Region"}, "b"]]
    assert not any(item["MapPublicIpOnLaunch"] for item in subnets)
    vpc = ipaddress.ip_network(demo.one(STACK, "AWS::EC2::VPC")["Properties"]["CidrBlock"])
    assert vpc.prefixlen == 16


def test_flow_logs_are_kept(demo: Assembly) -> None:
    flow: dict[str, Any] = demo.one(STACK, "AWS::EC2::FlowLog")["Properties"]
    assert flow["ResourceType"] == "VPC"
    assert demo.one(STACK, "AWS::Logs::LogGroup")["Properties"]["RetentionInDays"] == 7
