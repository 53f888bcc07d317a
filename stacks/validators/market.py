"""Rules of how machines are bought: market, reservation, back end and maintenance, in the mixes that AWS allows.

Sources (2026-11): https://docs.aws.amazon.com/autoscaling/ec2/userguide/target-capacity-reservations.html,
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ReservedCapacityOptionsRequest.html and
API_CapacityReservationOptionsRequest.html there: an EC2 Fleet uses reservations by its own options only when it is of
type instant, which cannot be resized.
"""

from __future__ import annotations

from collections.abc import Iterator

from stacks.capacity_plan import RESERVED_MARKETS, fixed_zone
from stacks.config import DeploymentConfig
from stacks.config.capacity import CapacityConfig
from stacks.errors import Problem

AUTO_SCALING_ONLY = ("capacity_block", "interruptible_reservation")
DEFAULT_STRATEGY = CapacityConfig.model_fields["allocation_strategy"].default


def reservation_is_named(config: DeploymentConfig) -> Iterator[Problem]:
    """A market of reserved capacity needs a reservation, and a reservation somebody who uses it."""
    capacity = config.capacity
    if capacity.reservation is None:
        if capacity.market in RESERVED_MARKETS:
            rule = "runs in reserved capacity, and capacity.reservation names none"
            yield Problem(
                "capacity.market", capacity.market, rule, "give reservation.id or reservation.resource_group_arn"
            )
        return
    if capacity.market == "on_demand":
        rule = "buys on demand, and capacity.reservation would stay unused"
        yield Problem("capacity.market", capacity.market, rule, "market: reserved, or drop the reservation")
    if capacity.market == "spot" and not capacity.on_demand_base:
        rule = "spot machines never run in a reservation, and no machine is on demand"
        yield Problem("capacity.on_demand_base", 0, rule, "give the number of reserved machines, or market: reserved")


def one_reservation(config: DeploymentConfig) -> Iterator[Problem]:
    """The reservation comes from exactly one place."""
    reservation = config.capacity.reservation
    if reservation is None:
        return
    given = [name for name in ("id", "resource_group_arn", "create") if getattr(reservation, name) is not None]
    if len(given) != 1:
        rule = "exactly one of id, resource_group_arn and create says where reserved capacity comes from"
        yield Problem("capacity.reservation", ", ".join(given) or "none of them", rule, "keep one")
    if reservation.zone is not None and reservation.id is None:
        rule = "is the zone of reservation.id, which is not given"
        yield Problem("capacity.reservation.zone", reservation.zone, rule, "drop it")


def backend(config: DeploymentConfig) -> Iterator[Problem]:
    """What a back end cannot buy."""
    capacity = config.capacity
    if capacity.market in AUTO_SCALING_ONLY:
        if capacity.backend != "auto_scaling_group":
            rule = f"a {capacity.backend} that keeps its size cannot buy from market {capacity.market}"
            yield Problem("capacity.backend", capacity.backend, rule, "backend: auto_scaling_group")
        if len(capacity.instance_types) != 1:
            rule = f"market {capacity.market} is of one instance type"
            yield Problem("capacity.instance_types", len(capacity.instance_types), rule, "keep the reserved type")
    if capacity.backend == "spot_fleet" and capacity.market == "reserved":
        rule = "a spot_fleet does not use reservations"
        yield Problem("capacity.backend", capacity.backend, rule, "backend: auto_scaling_group or ec2_fleet")
    if capacity.reservation is not None and capacity.market == "spot" and capacity.backend != "auto_scaling_group":
        rule = f"a {capacity.backend} cannot put its on-demand part into a reservation with spot machines on top"
        yield Problem("capacity.backend", capacity.backend, rule, "backend: auto_scaling_group")


def new_reservation(config: DeploymentConfig) -> Iterator[Problem]:
    """What a reservation that the stack makes must agree with."""
    capacity = config.capacity
    wanted = None if capacity.reservation is None else capacity.reservation.create
    if wanted is None:
        return
    path = "capacity.reservation.create"
    if capacity.market in AUTO_SCALING_ONLY:
        rule = f"a stack cannot make what market {capacity.market} uses"
        yield Problem(path, wanted.instance_type, rule, "buy or get it first, then give reservation.id")
    if wanted.instance_type not in capacity.instance_types:
        rule = "is not in capacity.instance_types, so no machine would use it"
        yield Problem(f"{path}.instance_type", wanted.instance_type, rule, "list it there")
    needed = capacity.nodes if capacity.market == "reserved" else capacity.on_demand_base
    if wanted.count < needed:
        rule = f"is less than the {needed} machines that are to run in it"
        yield Problem(f"{path}.count", wanted.count, rule, f"reserve {needed}")
    if wanted.count > needed:
        rule = f"reserves {wanted.count - needed} more than run in it: they are billed from the deploy on, unused"
        yield Problem(f"{path}.count", wanted.count, rule, f"reserve {needed}", "warning")
    if wanted.end is not None and wanted.end.tzinfo is None:
        rule = "has no time zone"
        yield Problem(f"{path}.end", wanted.end.isoformat(), rule, "write it like 2027-01-31T12:00:00Z")


def zone_is_there(config: DeploymentConfig) -> Iterator[Problem]:
    """The zone of reserved capacity must have a subnet."""
    zone, zones = fixed_zone(config), config.network.subnet_zones
    if config.capacity.reservation is None or zone is None or zone in zones:
        return
    where = "zone" if config.capacity.reservation.create is None else "create.zone"
    rule = f"is not a zone of the network ({', '.join(zones)})"
    yield Problem(f"capacity.reservation.{where}", zone, rule, "add it to the network's zones")


def maintenance(config: DeploymentConfig) -> Iterator[Problem]:
    """Each back end has maintenance options of its own."""
    capacity = config.capacity
    wanted, path, is_group = capacity.maintenance, "capacity.maintenance", capacity.backend == "auto_scaling_group"
    if wanted.max_lifetime_days is not None and not is_group:
        rule = f"a {capacity.backend} does not limit the age of machines"
        yield Problem(f"{path}.max_lifetime_days", wanted.max_lifetime_days, rule, "drop it")
    if not wanted.replace_unhealthy and is_group:
        rule = "an auto_scaling_group always replaces machines that fail"
        yield Problem(f"{path}.replace_unhealthy", False, rule, "drop it")
    if wanted.rebalance == "launch" and is_group:
        rule = "an auto_scaling_group knows launch_before_terminate only"
        yield Problem(f"{path}.rebalance", wanted.rebalance, rule, "launch_before_terminate, or off")
    if wanted.rebalance != "off" and capacity.market != "spot":
        rule = "AWS's early warning is for spot machines"
        yield Problem(f"{path}.rebalance", wanted.rebalance, rule, "drop it")
    delay = wanted.rebalance_termination_delay_seconds
    if delay is not None and (is_group or wanted.rebalance != "launch_before_terminate"):
        rule = "has a meaning for rebalance: launch_before_terminate of ec2_fleet and spot_fleet only"
        yield Problem(f"{path}.rebalance_termination_delay_seconds", delay, rule, "drop it")


def strategy(config: DeploymentConfig) -> Iterator[Problem]:
    """A strategy among spot pools needs spot machines."""
    capacity = config.capacity
    if capacity.market != "spot" and capacity.allocation_strategy != DEFAULT_STRATEGY:
        rule = f"is for spot machines, and the market is {capacity.market}"
        yield Problem("capacity.allocation_strategy", capacity.allocation_strategy, rule, "drop it")


RULES = (
    reservation_is_named,
    one_reservation,
    backend,
    new_reservation,
    zone_is_there,
    maintenance,
    strategy,
)
