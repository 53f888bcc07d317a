"""Limits on the number of networks, endpoints and addresses, on volume storage, and on Lambda concurrency."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stacks.account.account import Account
from stacks.config import DeploymentConfig
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.config.slots import slots_of
from stacks.errors import Problem

GIB_PER_TIB = 1024
UNRESERVED_MINIMUM = 100
"""Concurrent executions that must stay unreserved. Accounts with a lower limit cannot reserve any.
Source (2026-11): https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html, and the error message in
https://github.com/DataDog/datadog-serverless-functions/issues/621."""


@dataclass(frozen=True)
class Limit:
    """A quota for resources that the templates create.

    Attributes:
        what: Plural name of the resources.
        resource_type: CloudFormation type.
        counts: Whether a resource with these properties counts against the quota.
        quota: Service code and quota code.
        used: Function that counts the existing resources, given an EC2 client and the deployment.
    """

    what: str
    resource_type: str
    counts: Callable[[Mapping[str, Any]], bool]
    quota: tuple[str, str]
    used: Callable[[Any, DeploymentConfig], int]


def _count(client: Any, operation: str, key: str, **asked: Any) -> int:
    return sum(len(page[key]) for page in client.get_paginator(operation).paginate(**asked))


def _endpoints(client: Any, kind: str, config: DeploymentConfig) -> int:
    filters = [{"Name": "vpc-endpoint-type", "Values": [kind]}]
    if kind == "Interface":
        vpc = config.network.existing
        filters.append({"Name": "vpc-id", "Values": ["vpc-00000000" if vpc is None else vpc.id]})
    return _count(client, "describe_vpc_endpoints", "VpcEndpoints", Filters=filters)


def _all(properties: Mapping[str, Any]) -> bool:
    return True


# Sources (2026-11): https://docs.aws.amazon.com/vpc/latest/userguide/amazon-vpc-limits.html and
# https://docs.aws.amazon.com/vpc/latest/privatelink/vpc-limits-endpoints.html, which link to the quota codes.
LIMITS = (
    Limit("VPCs", "AWS::EC2::VPC", _all, ("vpc", "L-F678F1CE"), lambda ec2, _: _count(ec2, "describe_vpcs", "Vpcs")),
    Limit(
        "internet gateways",
        "AWS::EC2::InternetGateway",
        _all,
        ("vpc", "L-A4707A72"),
        lambda ec2, _: _count(ec2, "describe_internet_gateways", "InternetGateways"),
    ),
    Limit(
        "Elastic IP addresses",
        "AWS::EC2::EIP",
        _all,
        ("ec2", "L-0263D0A3"),
        lambda ec2, _: len(ec2.describe_addresses()["Addresses"]),
    ),
    Limit(
        "gateway endpoints in the region",
        "AWS::EC2::VPCEndpoint",
        lambda properties: properties["VpcEndpointType"] == "Gateway",
        ("vpc", "L-1B52E74A"),
        lambda ec2, config: _endpoints(ec2, "Gateway", config),
    ),
    Limit(
        "interface endpoints in the VPC",
        "AWS::EC2::VPCEndpoint",
        lambda properties: properties["VpcEndpointType"] == "Interface",
        ("vpc", "L-29B6F2EB"),
        lambda ec2, config: _endpoints(ec2, "Interface", config),
    ),
)
"""The limits on resources."""


def resources(account: Account) -> Iterator[Problem]:
    """Check that the account can create the networks, endpoints and addresses in the templates."""
    for limit in LIMITS:
        new = sum(limit.counts(properties) for properties in account.new_resources(limit.resource_type))
        if not new:
            continue
        value = _quota(account, *limit.quota)
        used = limit.used(account.client("ec2"), account.config)
        if used + new > value:
            rule = f"the deployment adds {new} {limit.what} to {used}, but the quota is {value:g}"
            yield Problem("network", limit.what, rule, f"delete unused ones, or {_increase(limit.quota[1])}")


def _quota(account: Account, service: str, code: str) -> float:
    answer = account.client("service-quotas").get_service_quota(ServiceCode=service, QuotaCode=code)
    return float(answer["Quota"]["Value"])


def _increase(code: str) -> str:
    return f"request an increase of quota {code} in Service Quotas"


def storage(account: Account) -> Iterator[Problem]:
    """Check that the volume quotas suffice for all nodes.

    Source (2026-11): https://docs.aws.amazon.com/ebs/latest/userguide/ebs-resource-quotas.html.
    """
    config = account.config
    node, data = config.node.root_volume, config.storage
    per_node_gib = node.gib + (data.dataset_volume.gib if data.dataset_volume else 0)
    fleets = [slot.config for slot in slots_of(config)]
    nodes = sum(fleet.capacity.nodes for fleet in fleets)
    gp3_gib = nodes * per_node_gib + (data.checkpoint_volume.gib if data.checkpoint_volume else 0)
    needs = [("gp3", "TiB", "L-7A658B76", gp3_gib / GIB_PER_TIB, "Size", GIB_PER_TIB)]
    if data.shared_volume is not None:
        needs.append(("io2", "TiB", "L-09BD8365", data.shared_volume.gib / GIB_PER_TIB, "Size", GIB_PER_TIB))
        needs.append(("io2", "IOPS", "L-8D977E7E", data.shared_volume.iops, "Iops", 1))
    for kind, unit, code, needed, figure, divisor in needs:
        filters = [{"Name": "volume-type", "Values": [kind]}]
        own = [{"Name": f"tag:{DEPLOYMENT_TAG}", "Values": [fleet.name for fleet in fleets]}]
        used = _sum(account, figure, filters) - _sum(account, figure, [*filters, *own])
        value = _quota(account, "ebs", code)
        if used / divisor + needed > value:
            rule = (
                f"{needed:.2f} {unit} of {kind} volumes are needed and {used / divisor:.2f} are in use, "
                f"but the quota is {value:g}"
            )
            yield Problem(
                "node.root_volume.gib", node.gib, rule, f"use smaller volumes or fewer nodes, or {_increase(code)}"
            )


def _sum(account: Account, figure: str, filters: list[dict[str, Any]]) -> float:
    pages = account.client("ec2").get_paginator("describe_volumes").paginate(Filters=filters)
    return sum(float(one.get(figure) or 0) for page in pages for one in page["Volumes"])


def concurrency(account: Account) -> Iterator[Problem]:
    """Check that the templates' functions can reserve concurrency, and that enough stays unreserved."""
    found = account.new_resources("AWS::Lambda::Function")
    reserved = sum(int(properties.get("ReservedConcurrentExecutions", 0)) for properties in found)
    limits = account.client("lambda").get_account_settings()["AccountLimit"]
    limit, free = limits["ConcurrentExecutions"], limits["UnreservedConcurrentExecutions"]
    least = min(UNRESERVED_MINIMUM, limit)
    if free - reserved < least and reserved:
        rule = (
            f"the functions reserve {reserved} concurrent executions, but only {free} of {limit} are unreserved, and "
            f"{least} must remain unreserved"
        )
        remedy = "request an increase of the quota `Concurrent executions` (lambda, L-B99A9384) in Service Quotas"
        yield Problem("--aws", f"{limit} concurrent executions", rule, remedy)
