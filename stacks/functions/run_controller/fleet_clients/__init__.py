"""Clients for the fleet back ends, with one class for each row of `fleet_back_ends.BACK_ENDS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..fleet_back_ends import Backend
from .auto_scaling_group import AutoScalingGroups
from .ec2_fleet import Ec2Fleet
from .fleet import Fleet, FleetIdentity
from .spot_fleet import SpotFleet

__all__ = ["Fleet", "FleetIdentity", "connect"]

CLIENTS: Mapping[Backend, Callable[[FleetIdentity, Callable[[str], Any]], Fleet]] = {
    "auto_scaling_group": lambda identity, client: AutoScalingGroups(identity, client("autoscaling"), client("ec2")),
    "ec2_fleet": lambda identity, client: Ec2Fleet(identity, client("ec2")),
    "spot_fleet": lambda identity, client: SpotFleet(identity, client("ec2")),
}


def connect(identity: FleetIdentity, client: Callable[[str], Any]) -> Fleet:
    """Return the client for a fleet. `client` creates the boto3 client for a service."""
    return CLIENTS[identity.backend](identity, client)
