"""The `network` section: a new private network, or an existing one."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import Field, field_validator

from stacks.config.setting import Section, ZoneLetter, setting
from stacks.config.setting import section as optional_section

Endpoint = Literal[
    "s3", "dynamodb", "ssm", "ssmmessages", "logs", "autoscaling", "ec2", "pcs", "ecr.api", "ecr.dkr", "eks",
    "eks-auth", "sts",
]  # fmt: skip
GATEWAYS: tuple[Endpoint, ...] = ("s3", "dynamodb")
"""Services whose endpoints are entries in route tables. All others have network interfaces in the subnets."""


def isolated_subnet(zone: str) -> str:
    """Return the logical id of the nodes' subnet in the zone with the given letter."""
    return f"Isolated{zone.upper()}"


class ExistingSubnet(Section):
    """A subnet for nodes in an existing VPC."""

    id: str = setting("Subnet id.", edit="replaces nodes", pattern=r"^subnet-[0-9a-f]{8,17}$")
    zone: str = setting(
        "Letter of the subnet's availability zone; synthesis does not look it up.",
        edit="replaces nodes",
        pattern=r"^[a-z]$",
    )


class ExistingVpc(Section):
    """An existing VPC, to which the deployment adds security groups and, if configured, endpoints."""

    id: str = setting("VPC id.", edit="replaces the network", pattern=r"^vpc-[0-9a-f]{8,17}$")
    cidr: str = setting(
        "Address range of the VPC; the endpoints' security group allows traffic from it.",
        edit="in place",
        examples=["10.0.0.0/16"],
    )
    subnets: list[ExistingSubnet] = setting(
        "Subnets for nodes, one per zone, in the order in which the run controller tries the zones.",
        edit="replaces nodes",
        min_length=1,
        max_length=6,
    )
    route_table_ids: list[Annotated[str, Field(pattern=r"^rtb-[0-9a-f]{8,17}$")]] = setting(
        "Ids of the subnets' route tables; required if `create_endpoints` includes s3 or dynamodb.",
        edit="in place",
        default=[],
    )
    create_endpoints: bool | list[Endpoint] = setting(
        "VPC endpoints to add. `true`: all endpoints that nodes need; a list: only these. AWS rejects a second S3 "
        "gateway in a route table, and a second interface endpoint for a service with private DNS in a VPC, so list "
        "only the missing ones; `check --aws` prints them. `false`: the VPC already has them, or has internet access.",
        edit="in place",
        default=False,
    )

    def creates_endpoint(self, service: str) -> bool:
        """Return True if the deployment adds the endpoint for a service that nodes need, such as `s3`."""
        return self.create_endpoints if isinstance(self.create_endpoints, bool) else service in self.create_endpoints

    @field_validator("cidr")
    @classmethod
    def _cidr_is_a_range(cls, text: str) -> str:
        if ipaddress.ip_network(text).version != 4:
            raise ValueError("must be an IPv4 range, such as 10.0.0.0/16")
        return text


class NetworkConfig(Section):
    """The nodes' private network."""

    existing: ExistingVpc | None = optional_section("An existing VPC; `null`: create one.", edit="replaces the network")
    cidr: str = setting(
        "Address range of the VPC, a /16 with 4,091 usable addresses per zone.",
        edit="replaces the network",
        default="10.64.0.0/16",
    )
    zones: list[ZoneLetter] = setting(
        "Letters of the availability zones; each has one subnet. Spot capacity differs by zone, so use several. Empty: "
        "the region's first three. Zones differ between accounts; `check --aws` prints the account's zones.",
        edit="replaces the network",
        default=[],
        max_length=6,
    )
    nat: bool = setting(
        "Give nodes internet access through a NAT gateway (about 33 USD per month and 0.045 USD per GB). Without it, "
        "nodes can reach only AWS endpoints, which is sufficient for training.",
        edit="in place",
        default=False,
    )
    flow_log_retention_days: Literal[0, 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365] = setting(
        "Days to keep the flow log of rejected connections; `0`: no flow log.", edit="in place", default=30
    )

    @field_validator("cidr")
    @classmethod
    def _cidr_is_a_vpc_range(cls, text: str) -> str:
        network = ipaddress.ip_network(text)
        # Source: https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html (2026-11).
        if network.version != 4 or not 16 <= network.prefixlen <= 16:
            raise ValueError("must be an IPv4 range of size /16, such as 10.64.0.0/16")
        return text

    @field_validator("zones")
    @classmethod
    def _zones_are_distinct(cls, zones: list[str]) -> list[str]:
        if len(set(zones)) != len(zones):
            raise ValueError("lists a zone twice; each zone has one subnet")
        return zones

    @property
    def subnet_zones(self) -> list[str]:
        """Zone letters of the nodes' subnets, in the order in which the run controller tries them."""
        if self.existing is not None:
            return [subnet.zone for subnet in self.existing.subnets]
        return self.zones
