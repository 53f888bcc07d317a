"""Responses that depend on the account: its zones, endpoint services, VPCs and Lambda limits (`account_file`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localcloud.account.account_file import AccountDescription, VpcDescription
from localcloud.api import ApiError, Call, Clients, Handler, Service

GATEWAY_SERVICES = ("s3", "dynamodb")


class _Part(Service):
    def __init__(self, account: AccountDescription, clients: Clients) -> None:
        self._account = account
        self._clients = clients


class AccountNetworks(_Part):
    """EC2's zones and endpoint services, if the account file sets them."""

    name = "ec2"

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        found: dict[str, Handler] = {}
        if self._account.zones:
            found |= {"DescribeAvailabilityZones": self.zones, "CreateSubnet": self.create_subnet}
        if self._account.endpoint_zones or self._account.endpoints_without_policy:
            found["DescribeVpcEndpointServices"] = self.endpoint_services
        return found

    def zones(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeAvailabilityZones."""
        found = self._moto("describe_availability_zones", call.parameters)["AvailabilityZones"]
        return {"AvailabilityZones": [one for one in found if one["ZoneName"][-1] in self._account.zones]}

    def create_subnet(self, call: Call) -> Mapping[str, Any]:
        """Handle CreateSubnet."""
        zone = call.parameters.get("AvailabilityZone")
        if zone and zone[-1] not in self._account.zones:
            known = ", ".join(f"{call.region}{letter}" for letter in self._account.zones)
            raise ApiError(
                "InvalidParameterValue",
                f"Value ({zone}) for parameter availabilityZone is invalid. Subnets can currently only be created in "
                f"the following availability zones: {known}.",
            )
        answer: Mapping[str, Any] = self._moto("create_subnet", call.parameters)
        return answer

    def endpoint_services(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeVpcEndpointServices."""
        prefix, changed = f"com.amazonaws.{call.region}.", self._account.endpoint_zones
        missing = [name for name in call.parameters.get("ServiceNames", []) if changed.get(name[len(prefix) :]) == []]
        if missing:
            raise ApiError("InvalidServiceName", f"The Vpc Endpoint Service '{missing[0]}' does not exist")
        answer = self._moto("describe_vpc_endpoint_services", call.parameters)
        details = []
        for one in answer["ServiceDetails"]:
            service = one["ServiceName"][len(prefix) :]
            if service in self._account.endpoints_without_policy:
                one |= {"VpcEndpointPolicySupported": False}
            letters = changed.get(service)
            if letters is None:
                details.append(one)
            elif letters:
                details.append(one | {"AvailabilityZones": [f"{call.region}{letter}" for letter in letters]})
        return {"ServiceNames": [one["ServiceName"] for one in details], "ServiceDetails": details}

    def _moto(self, operation: str, asked: Mapping[str, Any]) -> Any:
        return getattr(self._clients.direct("ec2"), operation)(**asked)


class AccountConcurrency(_Part):
    """Lambda's GetAccountSettings."""

    name = "lambda"

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {"GetAccountSettings": self.settings}

    def settings(self, call: Call) -> Mapping[str, Any]:
        """Handle GetAccountSettings."""
        client, limit = self._clients.direct("lambda"), self._account.lambda_concurrent_executions
        functions = [
            one["FunctionName"]
            for page in client.get_paginator("list_functions").paginate()
            for one in page["Functions"]
        ]
        reserved = [client.get_function_concurrency(FunctionName=name) for name in functions]
        unreserved = limit - sum(one.get("ReservedConcurrentExecutions", 0) for one in reserved)
        return {
            "AccountLimit": {"ConcurrentExecutions": limit, "UnreservedConcurrentExecutions": unreserved},
            "AccountUsage": {"FunctionCount": len(functions), "TotalCodeSize": 0},
        }


def create_vpcs(account: AccountDescription, clients: Clients) -> None:
    """Create the account's VPCs."""
    for described in account.vpcs:
        _create_vpc(described, clients)


def _create_vpc(described: VpcDescription, clients: Clients) -> None:
    ec2 = clients.direct("ec2")
    tags = [{"Key": "Name", "Value": described.name}]
    vpc: str = ec2.create_vpc(CidrBlock=described.cidr, TagSpecifications=[{"ResourceType": "vpc", "Tags": tags}])[
        "Vpc"
    ]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsSupport={"Value": described.dns_support})
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": described.dns_support})
    if described.dns_servers:
        configurations = [{"Key": "domain-name-servers", "Values": described.dns_servers}]
        options = ec2.create_dhcp_options(DhcpConfigurations=configurations)["DhcpOptions"]["DhcpOptionsId"]
        ec2.associate_dhcp_options(DhcpOptionsId=options, VpcId=vpc)
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, AvailabilityZone=f"{clients.region}{letter}")["Subnet"]["SubnetId"]
        for letter, cidr in described.subnets.items()
    ]
    tables = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"]
    for service in described.endpoints:
        name = f"com.amazonaws.{clients.region}.{service}"
        if service in GATEWAY_SERVICES:
            table_ids = [one["RouteTableId"] for one in tables]
            ec2.create_vpc_endpoint(VpcId=vpc, ServiceName=name, VpcEndpointType="Gateway", RouteTableIds=table_ids)
        else:
            ec2.create_vpc_endpoint(
                VpcId=vpc, ServiceName=name, VpcEndpointType="Interface", SubnetIds=subnets, PrivateDnsEnabled=True
            )
