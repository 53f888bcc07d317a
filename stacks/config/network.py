"""The `network` section: a private network of the deployment's own, or one that is there."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import Field, field_validator

from stacks.config.setting import Section, ZoneLetter, setting
from stacks.config.setting import section as optional_section


class ExistingSubnet(Section):
    """A subnet of an existing VPC that nodes are launched into."""

    id: str = setting("Subnet id.", edit="replaces nodes", pattern=r"^subnet-[0-9a-f]{8,17}$")
    zone: str = setting(
        "Letter of its availability zone: nothing is looked up when the templates are made.",
        edit="replaces nodes",
        pattern=r"^[a-z]$",
    )


class ExistingVpc(Section):
    """A VPC that somebody else owns; the deployment adds security groups and, when asked, endpoints."""

    id: str = setting("VPC id.", edit="replaces the network", pattern=r"^vpc-[0-9a-f]{8,17}$")
    cidr: str = setting(
        "Its address range, which the endpoints' security group admits.", edit="in place", examples=["10.0.0.0/16"]
    )
    subnets: list[ExistingSubnet] = setting(
        "Subnets of the nodes, one a zone, in the order in which zones are tried.",
        edit="replaces nodes",
        min_length=1,
        max_length=6,
    )
    route_table_ids: list[Annotated[str, Field(pattern=r"^rtb-[0-9a-f]{8,17}$")]] = setting(
        "Route tables of those subnets: gateway endpoints are entered there. Needed with create_endpoints.",
        edit="in place",
        default=[],
    )
    create_endpoints: bool = setting(
        "Whether to add the VPC endpoints that nodes need; false when the VPC has them, or a way out.",
        edit="in place",
        default=False,
    )

    @field_validator("cidr")
    @classmethod
    def _cidr_is_a_range(cls, text: str) -> str:
        if ipaddress.ip_network(text).version != 4:
            raise ValueError("must be an IPv4 range, such as 10.0.0.0/16")
        return text


class NetworkConfig(Section):
    """The private network of the nodes."""

    existing: ExistingVpc | None = optional_section(
        "A VPC that is there already; null: the deployment makes its own.", edit="replaces the network"
    )
    cidr: str = setting(
        "Address range of the VPC; a /16 leaves each zone 4,091 addresses.",
        edit="replaces the network",
        default="10.64.0.0/16",
    )
    zones: list[ZoneLetter] = setting(
        "Letters of the availability zones, one subnet each; three, since spot capacity differs by zone.",
        edit="replaces the network",
        default=["a", "b", "c"],
        min_length=1,
        max_length=6,
    )
    nat: bool = setting(
        "Whether nodes reach the internet through a NAT gateway (about 33 USD a month and 0.045 USD a GB); "
        "without it they reach AWS endpoints only, which is all that they need.",
        edit="in place",
        default=False,
    )
    flow_log_retention_days: Literal[0, 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365] = setting(
        "Days that the record of refused connections is kept; 0: no flow logs.", edit="in place", default=30
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
            raise ValueError("names a zone twice; each zone gets one subnet")
        return zones

    @property
    def subnet_zones(self) -> list[str]:
        """Zone letters of the nodes' subnets, in the order in which zones are tried."""
        if self.existing is not None:
            return [subnet.zone for subnet in self.existing.subnets]
        return self.zones
