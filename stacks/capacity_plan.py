"""What follows from the capacity section: types, fabric, zones, and how reservations are meant.

The stacks, the validators and the run controller's settings all ask here, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from stacks.config import DeploymentConfig
from stacks.efa_layouts import PLAIN, Layout, efa_layout
from stacks.instance_types import catalogue

RESERVED_MARKETS = ("reserved", "capacity_block", "interruptible_reservation")
"""Markets whose machines all run in what `capacity.reservation` names."""


def fabric(config: DeploymentConfig) -> Literal["efa", "tcp"]:
    """Return the network between the nodes: as asked for, else EFA when several nodes train and all types have it."""
    if config.node.fabric != "auto":
        return config.node.fabric
    types = catalogue().types
    have_it = all(name in types and types[name].efa_interfaces for name in config.capacity.instance_types)
    return "efa" if config.capacity.nodes > 1 and config.capacity.instance_types and have_it else "tcp"


def layouts(config: DeploymentConfig) -> Mapping[Layout, list[str]]:
    """Return the instance types by the network interfaces that they are launched with, in order of preference."""
    found: dict[Layout, list[str]] = {}
    for name in config.capacity.instance_types:
        found.setdefault(efa_layout(name) if fabric(config) == "efa" else PLAIN, []).append(name)
    return found


def fixed_zone(config: DeploymentConfig) -> str | None:
    """Return the letter of the one zone that reservation or storage keeps the fleet to; None: any of the network."""
    reservation = config.capacity.reservation
    if reservation is not None:
        zone = reservation.zone if reservation.create is None else reservation.create.zone
        if zone is not None:
            return zone
    shared = config.storage.shared_volume
    return None if shared is None else shared.zone


def zone_candidates(config: DeploymentConfig) -> list[str]:
    """Return the letters of the zones that the fleet may use, in the order in which they are tried."""
    zone = fixed_zone(config)
    return config.network.subnet_zones if zone is None else [zone]


def one_zone_at_a_time(config: DeploymentConfig) -> bool:
    """Tell whether an attempt stays in one zone, and the next one goes to the next."""
    capacity, storage = config.capacity, config.storage
    if capacity.zone_policy is not None:
        return capacity.zone_policy == "one_at_a_time"
    # A cluster placement group and a subnet of EFA are of one zone; so is what nodes write to a volume or file system.
    zonal = storage.checkpoint_volume or storage.shared_volume or storage.lustre
    return capacity.placement == "cluster" or fabric(config) == "efa" or zonal is not None


def is_spot(config: DeploymentConfig) -> bool:
    """Tell whether the fleet buys spot machines."""
    return config.capacity.market == "spot"


def on_demand_base(config: DeploymentConfig) -> int:
    """Return how many machines are not spot."""
    return config.capacity.on_demand_base if is_spot(config) else config.capacity.nodes
