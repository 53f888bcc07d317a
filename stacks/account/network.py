"""Checks of zones, endpoint services, and an existing VPC."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from stacks.account.account import Account
from stacks.capacity.plan import one_zone_at_a_time
from stacks.config.network import GATEWAYS, ExistingVpc
from stacks.constructs.network.vpc_endpoints import created_endpoints, needed_endpoints
from stacks.errors import Problem

AMAZON_DNS = "AmazonProvidedDNS"
PATH = "network.existing"


def zones(account: Account) -> Iterator[Problem]:
    """Check that the account has the zones in which the deployment creates subnets."""
    config = account.config
    if config.network.existing is not None:
        return
    found = account.client("ec2").describe_availability_zones()["AvailabilityZones"]
    known = {one["ZoneName"].removeprefix(config.region): one["State"] for one in found}
    for index, zone in enumerate(config.network.zones):
        if zone not in known:
            rule = f"is not a zone of this account in {config.region}; its zones are {', '.join(sorted(known))}"
            yield Problem(f"network.zones.{index}", zone, rule, "use one of these zones")
        elif known[zone] != "available":
            rule = f"is {known[zone]}"
            yield Problem(f"network.zones.{index}", zone, rule, "use another zone, or wait", "warning")


def endpoint_services(account: Account) -> Iterator[Problem]:
    """Check that each endpoint's service exists in the region and in the subnets' zones, and supports policies.

    Source (2026-11): https://docs.aws.amazon.com/vpc/latest/privatelink/vpc-endpoints-access.html: an endpoint for a
    service that does not support endpoint policies allows full access.
    """
    config = account.config
    for service in created_endpoints(config):
        name = f"com.amazonaws.{config.region}.{service}"
        try:
            details = account.client("ec2").describe_vpc_endpoint_services(ServiceNames=[name])["ServiceDetails"]
        except ClientError as error:
            if error.response["Error"]["Code"] != "InvalidServiceName":
                raise
            details = []
        if not details:
            rule = f"the region has no endpoint service for {service}"
            yield Problem("region", config.region, rule, "use another region, or network.existing with internet access")
            continue
        if not all(one.get("VpcEndpointPolicySupported") for one in details):
            rule = f"the endpoint for {service} does not support policies, so nodes can use it for other accounts"
            remedy = "use another region, or accept that data can be exported through this endpoint"
            yield Problem("region", config.region, rule, remedy, "warning")
        offered = {zone.removeprefix(config.region) for one in details for zone in one["AvailabilityZones"]}
        missing = [zone for zone in config.network.subnet_zones if zone not in offered]
        if missing and service not in GATEWAYS:
            rule = f"{service} has no endpoint in zone {', '.join(missing)}"
            path = "network.zones" if config.network.existing is None else f"{PATH}.subnets"
            yield Problem(path, ", ".join(missing), rule, f"use zones that have one: {', '.join(sorted(offered))}")


def vpc(account: Account) -> Iterator[Problem]:
    """Check that the existing VPC exists with the given range, and that its nodes can resolve AWS's host names.

    Interface endpoints with private DNS require both DNS attributes. Nodes can send only TLS, so they can use only
    Amazon's DNS server, which security groups do not filter.
    Source (2026-11): https://docs.aws.amazon.com/vpc/latest/privatelink/create-interface-endpoint.html and
    https://docs.aws.amazon.com/vpc/latest/userguide/VPC_DHCP_Options.html.
    """
    given, ec2 = account.config.network.existing, account.client("ec2")
    if given is None:
        return
    found = ec2.describe_vpcs(Filters=[{"Name": "vpc-id", "Values": [given.id]}])["Vpcs"]
    if not found:
        yield Problem(
            f"{PATH}.id", given.id, f"does not exist in {account.config.region}", "correct the id or the region"
        )
        return
    ranges = [one["CidrBlock"] for one in found[0].get("CidrBlockAssociationSet", [])] or [found[0]["CidrBlock"]]
    if given.cidr not in ranges:
        yield Problem(f"{PATH}.cidr", given.cidr, f"is not a range of {given.id}", f"use {', '.join(ranges)}")
    for attribute in ("enableDnsSupport", "enableDnsHostnames"):
        answer = ec2.describe_vpc_attribute(VpcId=given.id, Attribute=attribute)
        if not answer[attribute[0].upper() + attribute[1:]]["Value"]:
            remedy = f"aws ec2 modify-vpc-attribute --vpc-id {given.id} --{_option(attribute)}"
            rule = f"has {attribute} disabled, so nodes cannot resolve endpoint names"
            yield Problem(f"{PATH}.id", given.id, rule, f"run `{remedy}`")
    yield from _dns_servers(ec2, given, found[0])


def _option(attribute: str) -> str:
    return {"enableDnsSupport": "enable-dns-support", "enableDnsHostnames": "enable-dns-hostnames"}[attribute]


def _dns_servers(ec2: Any, given: ExistingVpc, found: Mapping[str, Any]) -> Iterator[Problem]:
    options = found.get("DhcpOptionsId", "default")
    if options == "default":
        return
    for one in ec2.describe_dhcp_options(DhcpOptionsIds=[options])["DhcpOptions"]:
        servers = [
            value["Value"]
            for item in one["DhcpConfigurations"]
            if item["Key"] == "domain-name-servers"
            for value in item["Values"]
        ]
        if other := [server for server in servers if server != AMAZON_DNS]:
            rule = (
                f"has the DNS servers {', '.join(other)}, which nodes cannot reach: they can send only TLS (port 443)"
            )
            yield Problem(f"{PATH}.id", given.id, rule, f"use a VPC whose DHCP options name {AMAZON_DNS}")


def subnets(account: Account) -> Iterator[Problem]:
    """Check that each subnet exists in the VPC and the given zone, with enough free addresses for the nodes."""
    config, given = account.config, account.config.network.existing
    if given is None:
        return
    ids = [subnet.id for subnet in given.subnets]
    answer = account.client("ec2").describe_subnets(Filters=[{"Name": "subnet-id", "Values": ids}])["Subnets"]
    found = {one["SubnetId"]: one for one in answer}
    free = []
    for index, subnet in enumerate(given.subnets):
        path, one = f"{PATH}.subnets.{index}", found.get(subnet.id)
        if one is None:
            yield Problem(f"{path}.id", subnet.id, f"does not exist in {config.region}", "correct the id")
            continue
        if one["VpcId"] != given.id:
            rule = f"is in {one['VpcId']}, not in {given.id}"
            yield Problem(f"{path}.id", subnet.id, rule, "use a subnet of the VPC")
        zone = one["AvailabilityZone"].removeprefix(config.region)
        if zone != subnet.zone:
            yield Problem(f"{path}.zone", subnet.zone, f"must be {zone}, the zone of {subnet.id}", f"set zone: {zone}")
        free.append(int(one["AvailableIpAddressCount"]))
    one_zone, nodes = one_zone_at_a_time(config), config.capacity.nodes
    if free and (max(free) if one_zone else sum(free)) < nodes:
        place = "in one subnet" if one_zone else "in total"
        rule = f"have {free} free addresses, but {nodes} nodes need {nodes} {place}"
        yield Problem(f"{PATH}.subnets", ", ".join(ids), rule, "use larger subnets, or fewer nodes")


def endpoints(account: Account) -> Iterator[Problem]:
    """Check that nodes in the existing VPC can reach every service they call, without duplicate endpoints."""
    given = account.config.network.existing
    if given is None:
        return
    ec2, in_vpc = account.client("ec2"), [{"Name": "vpc-id", "Values": [given.id]}]
    tables = ec2.describe_route_tables(Filters=in_vpc)["RouteTables"]
    own = set(account.deployed("NetworkStack").values())
    present = [
        one
        for page in ec2.get_paginator("describe_vpc_endpoints").paginate(Filters=in_vpc)
        for one in page["VpcEndpoints"]
        if one["VpcEndpointId"] not in own and one.get("State", "").lower() not in ("deleting", "deleted", "failed")
    ]
    by_subnet = {subnet.id: _table_of(subnet.id, tables) for subnet in given.subnets}
    yield from _route_tables(given, tables, by_subnet)
    created, needed = created_endpoints(account.config), needed_endpoints(account.config)
    taken = [service for service in needed if _is_taken(service, present, given.route_table_ids)]
    missing = [service for service in needed if not _is_taken(service, present, list(by_subnet.values()))]
    for service in created:
        if service in taken:
            rule = f"{given.id} already has an endpoint for {service}, and AWS rejects a second one"
            yield Problem(f"{PATH}.create_endpoints", service, rule, f"set create_endpoints: {_listed(missing)}")
    unreachable = [service for service in missing if service not in created]
    without_route = [subnet for subnet, table in by_subnet.items() if not _leads_out(table, tables)]
    if unreachable and without_route:
        rule = (
            f"{', '.join(without_route)} cannot reach {', '.join(unreachable)}: no endpoint, and no route to a gateway"
        )
        remedy = f"set create_endpoints: {_listed(missing)}, or add a route to a NAT or transit gateway"
        yield Problem(f"{PATH}.create_endpoints", ", ".join(created) or False, rule, remedy)


def _listed(services: Sequence[str]) -> str:
    return f"[{', '.join(services)}]" if services else "false"


def _table_of(subnet: str, tables: Sequence[Mapping[str, Any]]) -> str:
    """Return the id of a subnet's route table: the associated one, or the VPC's main table."""
    main = ""
    for table in tables:
        for association in table["Associations"]:
            if association.get("SubnetId") == subnet:
                return str(table["RouteTableId"])
            if association.get("Main"):
                main = str(table["RouteTableId"])
    return main


def _route_tables(
    given: ExistingVpc, tables: Sequence[Mapping[str, Any]], by_subnet: Mapping[str, str]
) -> Iterator[Problem]:
    known = {table["RouteTableId"] for table in tables}
    for index, table in enumerate(given.route_table_ids):
        if table not in known:
            rule = f"is not a route table of {given.id}"
            yield Problem(f"{PATH}.route_table_ids.{index}", table, rule, f"use {', '.join(sorted(known))}")
    forgotten = sorted(
        {table for table in by_subnet.values() if given.route_table_ids and table in known} - {*given.route_table_ids}
    )
    if forgotten:
        rule = f"must include {', '.join(forgotten)}, which the subnets use; without it, they cannot reach the gateways"
        yield Problem(f"{PATH}.route_table_ids", given.route_table_ids, rule, "add it")


def _is_taken(service: str, present: Sequence[Mapping[str, Any]], tables: Sequence[str]) -> bool:
    """Return True if an endpoint serves nodes: a gateway in their route tables, or an interface with private DNS."""
    for one in present:
        if not one["ServiceName"].endswith(f".{service}"):
            continue
        if one["VpcEndpointType"] == "Gateway":
            if {*one.get("RouteTableIds", [])} & {*tables}:
                return True
        elif one.get("PrivateDnsEnabled", False):
            return True
    return False


def _leads_out(table_id: str, tables: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if nodes without public addresses can reach the internet. Ignores routes to internet gateways."""
    for table in tables:
        if table["RouteTableId"] == table_id:
            return any(
                route.get("DestinationCidrBlock") == "0.0.0.0/0"
                and route.get("State", "active") == "active"
                and not str(route.get("GatewayId", "")).startswith("igw-")
                for route in table["Routes"]
            )
    return False


def overlaps(account: Account) -> Iterator[Problem]:
    """Warn if the range of another VPC in the account overlaps the new VPC's range: such VPCs cannot be connected."""
    config = account.config
    if config.network.existing is not None or account.deployed("NetworkStack"):
        return
    new = ipaddress.ip_network(config.network.cidr)
    for page in account.client("ec2").get_paginator("describe_vpcs").paginate():
        for one in page["Vpcs"]:
            if new.overlaps(ipaddress.ip_network(one["CidrBlock"])):
                rule = f"overlaps with {one['VpcId']} ({one['CidrBlock']}), so the two VPCs cannot be connected"
                yield Problem(
                    "network.cidr", config.network.cidr, rule, "use another range, or ignore this warning", "warning"
                )
