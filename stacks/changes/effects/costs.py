"""A deployment's costs per hour, per month and for the planned run, and the vCPU quota that it uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stacks.capacity.catalogue import Purchase, catalogue
from stacks.changes.effects.cluster_nodes import ClusterNodes, cluster_nodes
from stacks.changes.effects.fixed_costs import HOURS_PER_MONTH, fixed_usd_per_month, volume_usd_per_month
from stacks.changes.effects.fleet_summary import FleetSummary, by_slot, fleet_summary, launch_template_data
from stacks.changes.templates.template_set import TemplateSet, resources_of_type
from stacks.changes.templates.values import mapping, mappings, number, text_of


@dataclass(frozen=True)
class Range:
    """The range of an amount. The actual amount depends on which instance types the fleet launches."""

    low: float
    high: float

    def times(self, factor: float) -> Range:
        """Return the range multiplied by a factor."""
        return Range(self.low * factor, self.high * factor)

    def plus(self, amount: float) -> Range:
        """Return the range with an amount added to both ends."""
        return Range(self.low + amount, self.high + amount)


@dataclass(frozen=True)
class Costs:
    """A deployment's costs in USD. A cost is None if a price is unknown, and `unknown` then contains the reason.

    `training_per_hour` is the cost of all nodes while they train. `fixed_per_month` covers all other resources.
    """

    fleet: str
    training_per_hour: Range | None
    fixed_per_month: float
    fixed: Mapping[str, float]
    unknown: str | None

    @property
    def per_month(self) -> Range | None:
        """The cost of one month of uninterrupted training."""
        if self.training_per_hour is None:
            return None
        return self.training_per_hour.times(HOURS_PER_MONTH).plus(self.fixed_per_month)

    def per_run(self, hours: float | None) -> Range | None:
        """Return the cost of the nodes for a run of the given number of hours."""
        if hours is None or self.training_per_hour is None:
            return None
        return self.training_per_hour.times(hours)


@dataclass(frozen=True)
class Quota:
    """The number of vCPUs that a fleet uses from one of the account's quotas."""

    code: str
    market: str
    vcpus: int


def costs(templates: TemplateSet) -> Costs | None:
    """Return the deployment's costs, or None without templates. The costs of training include all slots."""
    if not templates:
        return None
    fixed = fixed_usd_per_month(templates) | _reservations(templates, fleet_summary(templates))
    slots = [_training_costs(slot) for slot in by_slot(templates)]
    if not slots and (cluster := cluster_nodes(templates)) is not None:
        slots = [_cluster_costs(templates, cluster)]
        fixed |= _login_node(cluster)
    slots = slots or [_Training("no fleet", Range(0, 0), None)]
    counts = Counter(slot.fleet for slot in slots)
    fleet = "; ".join(text if count == 1 else f"{count} slots of {text}" for text, count in counts.items())
    unknown = "; ".join(dict.fromkeys(slot.unknown for slot in slots if slot.unknown is not None)) or None
    hourly = [slot.per_hour for slot in slots if slot.per_hour is not None]
    per_hour = Range(sum(one.low for one in hourly), sum(one.high for one in hourly))
    is_known = len(hourly) == len(slots)
    return Costs(fleet, per_hour if is_known else None, sum(fixed.values()), fixed, unknown)


@dataclass(frozen=True)
class _Training:
    """The nodes of one slot as text, their cost in USD per hour, and why it is unknown or incomplete."""

    fleet: str
    per_hour: Range | None
    unknown: str | None


def _training_costs(templates: TemplateSet) -> _Training:
    fleet = fleet_summary(templates)
    assert fleet is not None, "by_slot"
    text = f"{fleet.nodes} x {' or '.join(fleet.instance_types)}, {fleet.market}"
    if fleet.market_type == "capacity-block":
        return _Training(text, None, "a capacity block is paid for in advance")
    # A reservation that the stack creates is a fixed cost because it is billed whether or not it is used.
    is_paid = fleet.is_reserved and bool(_reservations(templates, fleet))
    prices, unknown = _usd_per_hour_by_type(fleet, is_paid=is_paid)
    return _Training(text, _with_volumes(prices, templates, fleet.nodes), unknown)


def _cluster_costs(templates: TemplateSet, cluster: ClusterNodes) -> _Training:
    prices, unknown = _usd_per_hour_by_type(cluster, is_paid=False)
    reasons = "; ".join(reason for reason in (unknown, cluster.fees) if reason is not None)
    return _Training(cluster.text, _with_volumes(prices, templates, cluster.nodes), reasons)


def _with_volumes(prices: Sequence[float], templates: TemplateSet, nodes: int) -> Range | None:
    """Return the range of the nodes' hourly cost with their volumes, or None without a price."""
    if not prices:
        return None
    return Range(min(prices), max(prices)).plus(_node_volumes_usd_per_hour(templates) * nodes)


def _login_node(cluster: ClusterNodes) -> dict[str, float]:
    if cluster.login_type is None:
        return {}
    price = catalogue().usd_per_hour(cluster.region, cluster.login_type, "on_demand")
    return {} if price is None else {"login node": price * HOURS_PER_MONTH}


def price_dates(templates: TemplateSet) -> dict[str, str]:
    """Return the date of the instance prices for each market in the deployment's region."""
    fleet = fleet_summary(templates) or cluster_nodes(templates)
    prices = catalogue().regions.get(fleet.region) if fleet is not None else None
    if prices is None:
        return {}
    markets: tuple[Purchase, ...] = ("spot", "on_demand")
    return {market: prices.sources[market].date.isoformat() for market in markets if market in prices.sources}


def _usd_per_hour_by_type(fleet: FleetSummary | ClusterNodes, *, is_paid: bool) -> tuple[list[float], str | None]:
    """Return the hourly cost of nodes of a single type, for each type with known prices.

    Args:
        fleet: The nodes.
        is_paid: Whether another cost contains the nodes that are not Spot Instances.
    """
    found, missing = [], []
    for name in fleet.instance_types:
        parts: list[tuple[int, Purchase]] = [(fleet.spot_nodes, "spot")]
        parts += [] if is_paid else [(fleet.on_demand_nodes, "on_demand")]
        sums = [(number, catalogue().usd_per_hour(fleet.region, name, market)) for number, market in parts if number]
        if any(price is None for _, price in sums):
            missing.append(name)
        else:
            found.append(sum(number * (price or 0.0) for number, price in sums))
    unknown = f"the price of {', '.join(missing)} in {fleet.region} is unknown" if missing else None
    return found, unknown


def _reservations(templates: TemplateSet, fleet: FleetSummary | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for _, _, definition in resources_of_type(templates, "AWS::EC2::CapacityReservation"):
        properties = definition.get("Properties", {})
        name = text_of(properties.get("InstanceType"))
        price = catalogue().usd_per_hour(fleet.region if fleet else "", name, "on_demand")
        if price is not None:
            usd = price * number(properties.get("InstanceCount"), otherwise=0) * HOURS_PER_MONTH
            found["capacity reservation"] = found.get("capacity reservation", 0.0) + usd
    return found


def _node_volumes_usd_per_hour(templates: TemplateSet) -> float:
    """Return the hourly cost of one node's volumes."""
    for _, _, template in resources_of_type(templates, "AWS::EC2::LaunchTemplate"):
        devices = mappings(launch_template_data(template).get("BlockDeviceMappings"))
        return sum(volume_usd_per_month(one["Ebs"]) for one in devices if mapping(one.get("Ebs"))) / HOURS_PER_MONTH
    return 0.0


def quotas(templates: TemplateSet) -> list[Quota]:
    """Return the vCPU quotas that all slots or the cluster use if every node has the largest listed type."""
    sums: Counter[tuple[str, str]] = Counter()
    fleets = [fleet for slot in by_slot(templates) if (fleet := fleet_summary(slot)) is not None]
    nodes: list[FleetSummary | ClusterNodes] = [each for each in fleets if each.market_type != "capacity-block"]
    if (cluster := cluster_nodes(templates)) is not None:
        nodes.append(cluster)
    for each in nodes:
        sums.update({(one.market, one.code): one.vcpus for one in _quotas(each)})
    return [Quota(code, market, vcpus) for (market, code), vcpus in sorted(sums.items())]


def _quotas(fleet: FleetSummary | ClusterNodes) -> Iterator[Quota]:
    for market, nodes in (("spot", fleet.spot_nodes), ("on demand", fleet.on_demand_nodes)):
        most: dict[str, int] = {}
        for name in fleet.instance_types if nodes else ():
            one = catalogue().types.get(name)
            code = None if one is None else one.quota_code(spot=market == "spot")
            if one is not None and code is not None:
                most[code] = max(most.get(code, 0), nodes * one.vcpus)
        yield from (Quota(code, market, vcpus) for code, vcpus in most.items())
