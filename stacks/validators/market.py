"""Rules for purchasing instances: the combinations of market, reservation, back end and maintenance that AWS supports.

Sources (2026-11): https://docs.aws.amazon.com/autoscaling/ec2/userguide/target-capacity-reservations.html,
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ReservedCapacityOptionsRequest.html and
API_CapacityReservationOptionsRequest.html in the same reference. Only an EC2 Fleet of type instant has its own
reservation options, and an instant fleet cannot be resized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stacks.capacity.plan import RESERVED_MARKETS, fixed_zone
from stacks.config import DeploymentConfig
from stacks.config.capacity import CapacityConfig
from stacks.errors import Problem
from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS, BackEnd

SINGLE_TYPE_MARKETS = ("capacity_block", "interruptible_reservation")
DEFAULT_STRATEGY = CapacityConfig.model_fields["allocation_strategy"].default


def reservation_is_used(config: DeploymentConfig) -> Iterator[Problem]:
    """A reserved-capacity market has a reservation, and every reservation has instances that use it."""
    capacity = config.capacity
    if capacity.reservation is None:
        if capacity.market in RESERVED_MARKETS:
            rule = "needs capacity.reservation"
            remedy = "set reservation.id or reservation.resource_group_arn"
            yield Problem("capacity.market", capacity.market, rule, remedy)
        return
    if capacity.market == "on_demand":
        rule = "does not use capacity.reservation"
        yield Problem("capacity.market", capacity.market, rule, "set market: reserved, or remove the reservation")
    if capacity.market == "spot" and not capacity.on_demand_base:
        rule = "must be at least 1 with capacity.reservation, which spot instances never use"
        yield Problem("capacity.on_demand_base", 0, rule, "set the number of reserved instances, or market: reserved")


def one_reservation(config: DeploymentConfig) -> Iterator[Problem]:
    """The reservation has exactly one source."""
    reservation = config.capacity.reservation
    if reservation is None:
        return
    given = [name for name in ("id", "resource_group_arn", "create") if getattr(reservation, name) is not None]
    if len(given) != 1:
        rule = "must have exactly one of id, resource_group_arn and create"
        yield Problem("capacity.reservation", ", ".join(given) or "none is set", rule, "keep one")
    if reservation.zone is not None and reservation.id is None:
        rule = "applies to reservation.id, which is not set"
        yield Problem("capacity.reservation.zone", reservation.zone, rule, "remove it")


def backend(config: DeploymentConfig) -> Iterator[Problem]:
    """The back end supports the market and its combination with other settings."""
    capacity = config.capacity
    back_end = BACK_ENDS[capacity.backend]
    if capacity.market not in back_end.markets:
        rule = f"{capacity.backend} does not support market {capacity.market}"
        yield Problem("capacity.backend", capacity.backend, rule, _choose(lambda one: capacity.market in one.markets))
    if capacity.market in SINGLE_TYPE_MARKETS and len(capacity.instance_types) > 1:
        rule = f"market {capacity.market} needs exactly one instance type"
        yield Problem("capacity.instance_types", len(capacity.instance_types), rule, "keep the reserved type")
    if capacity.reservation is not None and capacity.market == "spot" and not back_end.mixes_reserved_and_spot:
        rule = f"{capacity.backend} cannot combine spot instances with an on-demand base in a reservation"
        yield Problem("capacity.backend", capacity.backend, rule, _choose(lambda one: one.mixes_reserved_and_spot))


def _choose(supports: Callable[[BackEnd], bool]) -> str:
    return f"set backend: {' or '.join(name for name, one in BACK_ENDS.items() if supports(one))}"


def new_reservation(config: DeploymentConfig) -> Iterator[Problem]:
    """A reservation that the stack creates matches the fleet."""
    capacity = config.capacity
    wanted = None if capacity.reservation is None else capacity.reservation.create
    if wanted is None:
        return
    path = "capacity.reservation.create"
    if capacity.market in SINGLE_TYPE_MARKETS:
        rule = f"a stack cannot create the capacity of market {capacity.market}"
        yield Problem(path, wanted.instance_type, rule, "buy or request it first, then set reservation.id")
    if wanted.instance_type not in capacity.instance_types:
        rule = "must be in capacity.instance_types; otherwise, no instance uses it"
        yield Problem(f"{path}.instance_type", wanted.instance_type, rule, "add it there")
    needed = capacity.nodes if capacity.market == "reserved" else capacity.on_demand_base
    if wanted.count < needed:
        rule = f"must be at least {needed}, the number of instances that use it"
        yield Problem(f"{path}.count", wanted.count, rule, f"reserve {needed}")
    if wanted.count > needed:
        rule = f"reserves {wanted.count - needed} unused instances, which are billed from their creation"
        yield Problem(f"{path}.count", wanted.count, rule, f"reserve {needed}", "warning")
    if wanted.end is not None and wanted.end.tzinfo is None:
        rule = "must include a time zone"
        yield Problem(f"{path}.end", wanted.end.isoformat(), rule, "use a format such as 2027-01-31T12:00:00Z")


def reservation_zone(config: DeploymentConfig) -> Iterator[Problem]:
    """The reservation's zone has a subnet."""
    zone, zones = fixed_zone(config), config.network.subnet_zones
    if config.capacity.reservation is None or zone is None or zone in zones:
        return
    key = "zone" if config.capacity.reservation.create is None else "create.zone"
    rule = f"must be a zone of the network ({', '.join(zones)})"
    yield Problem(f"capacity.reservation.{key}", zone, rule, "add it to the network's zones")


def maintenance(config: DeploymentConfig) -> Iterator[Problem]:
    """The back end supports the maintenance options."""
    capacity = config.capacity
    wanted, path, back_end = capacity.maintenance, "capacity.maintenance", BACK_ENDS[capacity.backend]
    if wanted.max_lifetime_days is not None and not back_end.limits_instance_lifetime:
        rule = f"{capacity.backend} does not support a maximum instance lifetime"
        yield Problem(f"{path}.max_lifetime_days", wanted.max_lifetime_days, rule, "remove it")
    if not wanted.replace_unhealthy and back_end.always_replaces_unhealthy:
        rule = f"{capacity.backend} always replaces unhealthy instances"
        yield Problem(f"{path}.replace_unhealthy", False, rule, "remove it")
    if wanted.rebalance not in back_end.rebalance_modes:
        rule = f"{capacity.backend} does not support this mode"
        yield Problem(f"{path}.rebalance", wanted.rebalance, rule, f"set one of {', '.join(back_end.rebalance_modes)}")
    if wanted.rebalance != "off" and capacity.market != "spot":
        rule = "rebalance recommendations exist only for spot instances"
        yield Problem(f"{path}.rebalance", wanted.rebalance, rule, "remove it")
    delay = wanted.rebalance_termination_delay_seconds
    if delay is not None and not (back_end.has_termination_delay and wanted.rebalance == "launch_before_terminate"):
        names = " and ".join(name for name, one in BACK_ENDS.items() if one.has_termination_delay)
        rule = f"only applies to rebalance: launch_before_terminate with {names}"
        yield Problem(f"{path}.rebalance_termination_delay_seconds", delay, rule, "remove it")


def strategy(config: DeploymentConfig) -> Iterator[Problem]:
    """A spot allocation strategy needs spot instances."""
    capacity = config.capacity
    if capacity.market != "spot" and capacity.allocation_strategy != DEFAULT_STRATEGY:
        rule = f"applies to spot instances, but the market is {capacity.market}"
        yield Problem("capacity.allocation_strategy", capacity.allocation_strategy, rule, "remove it")


RULES = (
    reservation_is_used,
    one_reservation,
    backend,
    new_reservation,
    reservation_zone,
    maintenance,
    strategy,
)
