"""What a deployment costs by the hour, by the month and for the planned run; and the quotas that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stacks.account.capacity import quota_code
from stacks.changes.assembly import Assembly, resources_of_type
from stacks.changes.fleet_facts import FleetFacts, fleet_facts
from stacks.changes.standing_costs import HOURS_A_MONTH, standing_usd_per_month, volume_usd_per_month
from stacks.instance_types import Purchase, catalogue


@dataclass(frozen=True)
class Range:
    """The least and the most, by the instance type that the fleet gets."""

    least: float
    most: float

    def times(self, factor: float) -> Range:
        """Return it so many times."""
        return Range(self.least * factor, self.most * factor)

    def plus(self, more: float) -> Range:
        """Return it with a fixed sum on top."""
        return Range(self.least + more, self.most + more)


@dataclass(frozen=True)
class Costs:
    """USD of one deployment; None where a price is not known, with the reason in `unknown`.

    `training_per_hour` is what all nodes cost while they train, `standing_per_month` what is there besides.
    """

    fleet: str
    training_per_hour: Range | None
    standing_per_month: float
    standing: Mapping[str, float]
    unknown: str | None

    @property
    def per_month(self) -> Range | None:
        """What a month costs in which the nodes never stop."""
        if self.training_per_hour is None:
            return None
        return self.training_per_hour.times(HOURS_A_MONTH).plus(self.standing_per_month)

    def per_run(self, hours: float | None) -> Range | None:
        """Return what the nodes cost for a run of so many hours."""
        if hours is None or self.training_per_hour is None:
            return None
        return self.training_per_hour.times(hours)


@dataclass(frozen=True)
class Quota:
    """vCPUs that count against one quota of the account."""

    code: str
    market: str
    vcpus: int


def costs(assembly: Assembly) -> Costs | None:
    """Return the costs of a deployment, None when there is none."""
    if not assembly:
        return None
    facts = fleet_facts(assembly)
    standing = standing_usd_per_month(assembly)
    reserved = _reservations(assembly)
    standing |= reserved
    total = sum(standing.values())
    if facts is None:
        return Costs("no fleet", Range(0, 0), total, standing, None)
    fleet = f"{facts.nodes} x {' or '.join(facts.instance_types)}, {facts.market}"
    if facts.market_type == "capacity-block":
        return Costs(fleet, None, total, standing, "a capacity block is paid in advance")
    prices, unknown = _by_type(facts, bool(reserved))
    if not prices:
        return Costs(fleet, None, total, standing, unknown)
    volumes = _node_volumes_usd_per_hour(assembly) * facts.nodes
    return Costs(fleet, Range(min(prices), max(prices)).plus(volumes), total, standing, unknown)


def price_dates(assembly: Assembly) -> dict[str, str]:
    """Return the day of the prices of machines by way to pay, in the deployment's region."""
    facts = fleet_facts(assembly)
    prices = catalogue().regions.get(facts.region) if facts is not None else None
    if prices is None:
        return {}
    return {way: prices.sources[way].date.isoformat() for way in ("spot", "on_demand") if way in prices.sources}


def _by_type(facts: FleetFacts, own_reservation: bool) -> tuple[list[float], str | None]:
    """Return what an hour of all nodes costs if they are all of one type, for each type with known prices."""
    found, missing = [], []
    for name in facts.instance_types:
        parts: list[tuple[int, Purchase]] = [(facts.spot_nodes, "spot")]
        # What the stack reserves is paid as a reservation, used or not.
        parts += [] if own_reservation and facts.is_reserved else [(facts.on_demand_nodes, "on_demand")]
        sums = [(number, catalogue().usd_per_hour(facts.region, name, way)) for number, way in parts if number]
        if any(price is None for _, price in sums):
            missing.append(name)
        else:
            found.append(sum(number * (price or 0.0) for number, price in sums))
    unknown = f"no price of {', '.join(missing)} in {facts.region} is known" if missing else None
    return found, unknown


def _reservations(assembly: Assembly) -> dict[str, float]:
    found: dict[str, float] = {}
    facts = fleet_facts(assembly)
    for _, _, definition in resources_of_type(assembly, "AWS::EC2::CapacityReservation"):
        properties = definition["Properties"]
        price = catalogue().usd_per_hour(facts.region if facts else "", str(properties["InstanceType"]), "on_demand")
        if price is not None:
            usd = price * int(properties["InstanceCount"]) * HOURS_A_MONTH
            found["capacity reservation"] = found.get("capacity reservation", 0.0) + usd
    return found


def _node_volumes_usd_per_hour(assembly: Assembly) -> float:
    """Return what the volumes of one node cost an hour."""
    for _, _, template in resources_of_type(assembly, "AWS::EC2::LaunchTemplate"):
        devices: list[Mapping[str, Any]] = template["Properties"]["LaunchTemplateData"].get("BlockDeviceMappings", [])
        return sum(volume_usd_per_month(one["Ebs"]) for one in devices if "Ebs" in one) / HOURS_A_MONTH
    return 0.0


def quotas(assembly: Assembly) -> list[Quota]:
    """Return the vCPU quotas that the fleet counts against, by the largest type that it may get."""
    facts = fleet_facts(assembly)
    if facts is None or facts.market_type == "capacity-block":
        return []
    return sorted(_quotas(facts), key=lambda one: (one.market, one.code))


def _quotas(facts: FleetFacts) -> Iterator[Quota]:
    for market, number in (("spot", facts.spot_nodes), ("on demand", facts.on_demand_nodes)):
        most: dict[str, int] = {}
        for name in facts.instance_types if number else ():
            one = catalogue().types.get(name)
            code = None if one is None else quota_code(one, spot=market == "spot")
            if one is not None and code is not None:
                most[code] = max(most.get(code, 0), number * one.vcpus)
        yield from (Quota(code, market, vcpus) for code, vcpus in most.items())
