"""NetworkStack: no internet access, and exactly the endpoints that the nodes' calls need."""

from __future__ import annotations

import ipaddress
from typing import Any

from stacks.constructs.network.vpc_endpoints import INTERFACES

from .conftest import ROOT, Assembly, Synthesis

STACK = "NetworkStack"


def test_security_group_has_self_rules_in_both_directions(demo: Assembly) -> None:
    """EFA needs both; the CDK drops the egress rule to the group itself if all outbound traffic is allowed."""
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


def services(assembly: Assembly, kind: str) -> dict[str, dict[str, Any]]:
    """Return the properties of the endpoints of one kind by service name."""
    endpoints = [item["Properties"] for item in assembly.of_type(STACK, "AWS::EC2::VPCEndpoint").values()]
    return {item["ServiceName"].rsplit(".", 1)[1]: item for item in endpoints if item["VpcEndpointType"] == kind}


def test_interface_endpoints_match_the_nodes_calls(demo: Assembly) -> None:
    interfaces = services(demo, "Interface")
    assert set(interfaces) == {"ssm", "ssmmessages", "logs", "autoscaling"}
    assert all(item["PrivateDnsEnabled"] for item in interfaces.values())


def test_each_interface_endpoint_has_a_source() -> None:
    """A project file, or a URL with its access date."""
    for interface in INTERFACES:
        for source in interface.source.split("; "):
            assert source.endswith("(2026-11)") or (ROOT / source).is_file(), source


def test_endpoints_depend_on_the_features_in_use(synthesis: Synthesis) -> None:
    volume = {"snapshot_id": "snap-0123456789abcdef0", "gib": 10}
    changed = synthesis.variant("volumes", {"storage.dataset_volume": volume, "node.session_manager": False})
    assert set(services(changed, "Interface")) == {"ssm", "logs", "autoscaling", "ec2"}


def test_s3_endpoint_allows_the_account_and_reads_from_aws(demo: Assembly) -> None:
    own, from_aws = services(demo, "Gateway")["s3"]["PolicyDocument"]["Statement"]
    assert own["Condition"] == {"StringEquals": {"aws:ResourceAccount": {"Ref": "AWS::AccountId"}}}
    assert {"s3:GetObject", "s3:PutObject", "s3:ListBucket"} < set(own["Action"])
    assert from_aws["Action"] == "s3:GetObject"
    for resource in from_aws["Resource"]:
        name = resource["Fn::Join"][1][-1]
        assert name.endswith("/*")
        assert "*" not in name.removesuffix("/*"), "the name of an AWS bucket must be exact, without a wildcard"


def test_dynamodb_endpoint_allows_tables_of_the_account_only(demo: Assembly) -> None:
    (statement,) = services(demo, "Gateway")["dynamodb"]["PolicyDocument"]["Statement"]
    assert {"Ref": "AWS::AccountId"} in statement["Resource"]["Fn::Join"][1]
    assert not any(action.endswith("*") for action in statement["Action"])


def test_one_private_subnet_per_zone(demo: Assembly) -> None:
    subnets = [item["Properties"] for item in demo.of_type(STACK, "AWS::EC2::Subnet").values()]
    zones = [item["AvailabilityZone"]["Fn::Join"][1] for item in subnets]
    assert zones == [[{"Ref": "AWS::Region"}, "a"], [{"Ref": "AWS::Region"}, "b"]]
    assert not any(item["MapPublicIpOnLaunch"] for item in subnets)
    vpc = ipaddress.ip_network(demo.one(STACK, "AWS::EC2::VPC")["Properties"]["CidrBlock"])
    assert vpc.prefixlen == 16


def test_flow_logs_are_encrypted(demo: Assembly) -> None:
    flow: dict[str, Any] = demo.one(STACK, "AWS::EC2::FlowLog")["Properties"]
    assert flow["ResourceType"] == "VPC"
    group = demo.one(STACK, "AWS::Logs::LogGroup")["Properties"]
    (key,) = demo.of_type(STACK, "AWS::KMS::Key")
    assert group["RetentionInDays"] == 30
    assert group["KmsKeyId"] == {"Fn::GetAtt": [key, "Arn"]}


def test_nat_creates_internet_access(synthesis: Synthesis) -> None:
    """One gateway in a separate subnet; 0 days of flow logs create neither logs nor their key."""
    out = synthesis.variant("nat", {"network.nat": True, "network.flow_log_retention_days": 0})
    routes = [item["Properties"] for item in out.of_type(STACK, "AWS::EC2::Route").values()]
    assert {item["DestinationCidrBlock"] for item in routes} == {"0.0.0.0/0"}
    (private,) = (item for item in routes if "NatGatewayId" in item)
    assert private["RouteTableId"] == {"Ref": "Routes"}
    nat = out.one(STACK, "AWS::EC2::NatGateway")["Properties"]
    assert nat["SubnetId"] == {"Ref": "Public"}
    kinds = {item["Type"] for item in out.resources(STACK).values()}
    assert not kinds & {"AWS::EC2::FlowLog", "AWS::Logs::LogGroup", "AWS::KMS::Key"}


def test_existing_vpc_gets_groups_and_endpoints_only(synthesis: Synthesis) -> None:
    existing = {
        "id": "vpc-0123456789abcdef0",
        "cidr": "10.0.0.0/16",
        "subnets": [{"id": "subnet-0123456789abcdef0", "zone": "b"}],
    }
    endpoints = {**existing, "create_endpoints": True, "route_table_ids": ["rtb-0123456789abcdef0"]}
    without = synthesis.variant("existing", {"network.existing": existing}, base="single-gpu")
    assert not without.of_type(STACK, "AWS::EC2::VPCEndpoint")
    made = synthesis.variant("existing-endpoints", {"network.existing": endpoints}, base="single-gpu")
    for assembly in (without, made):
        kinds = {item["Type"] for item in assembly.resources(STACK).values()}
        assert not kinds & {"AWS::EC2::VPC", "AWS::EC2::Subnet", "AWS::EC2::RouteTable", "AWS::EC2::FlowLog"}
        for group in assembly.of_type(STACK, "AWS::EC2::SecurityGroup").values():
            assert group["Properties"]["VpcId"] == "vpc-0123456789abcdef0"
        assert "subnet-0123456789abcdef0" in assembly.text("TrainingStack")
    assert services(made, "Gateway")["s3"]["RouteTableIds"] == ["rtb-0123456789abcdef0"]
    assert services(made, "Interface")["logs"]["SubnetIds"] == ["subnet-0123456789abcdef0"]


def test_existing_vpc_gets_only_the_listed_endpoints(synthesis: Synthesis) -> None:
    """Two gateways for a service in a route table, or two private DNS names, make the stack fail."""
    existing = {
        "id": "vpc-0123456789abcdef0",
        "cidr": "10.0.0.0/16",
        "subnets": [{"id": "subnet-0123456789abcdef0", "zone": "b"}],
        "create_endpoints": ["logs", "ec2"],
    }
    made = synthesis.variant("existing-two", {"network.existing": existing}, base="single-gpu")
    assert not services(made, "Gateway")
    assert set(services(made, "Interface")) == {"logs"}, "nodes without volumes do not call EC2"
    gateway = {**existing, "create_endpoints": ["s3"], "route_table_ids": ["rtb-0123456789abcdef0"]}
    made = synthesis.variant("existing-gateway", {"network.existing": gateway}, base="single-gpu")
    assert set(services(made, "Gateway")) == {"s3"}
    assert not services(made, "Interface")
    groups = made.of_type(STACK, "AWS::EC2::SecurityGroup")
    assert set(groups) == {"Nodes"}, "a gateway has no security group"


def test_zones_exist_in_the_region_by_default(synthesis: Synthesis) -> None:
    """Canada has no zone c for new accounts: https://github.com/getmoto/moto records the zones of each region."""
    made = synthesis.variant("canada", {"region": "ca-central-1"}, base="minimal")
    subnets = [item["Properties"] for item in made.of_type(STACK, "AWS::EC2::Subnet").values()]
    assert [item["AvailabilityZone"]["Fn::Join"][1][-1] for item in subnets] == ["a", "b", "d"]
