"""Costs of a run's instances: from the ledger or, without one, from their lifetimes and the catalogue's prices.

Linux instances are billed per second with a minimum of 60 s: https://aws.amazon.com/ec2/pricing/on-demand/ (read
2026-11). AWS does not charge for a spot instance that it reclaims within the first hour. The ledger applies that rule,
and lifetimes ignore it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stacks.functions.run_controller.ledger.documents import Entry

MIN_SECONDS = 60.0


@dataclass(frozen=True)
class Costs:
    """The cost of all instances, both in their own markets (`spot_usd`) and at on-demand prices."""

    lines: list[dict[str, Any]]
    spot_usd: float | None
    on_demand_usd: float | None
    price_date: str | None
    price_source: str | None
    currency: str
    problems: list[str]
    prices: list[dict[str, Any]] = field(default_factory=list)
    """The catalogue's price per hour of each instance type, on demand and at spot; None: unknown."""
    source: str = "lifetimes of the instances"

    @property
    def saved_usd(self) -> float | None:
        """The savings from using spot capacity, or None without prices."""
        if self.spot_usd is None or self.on_demand_usd is None:
            return None
        return round(self.on_demand_usd - self.spot_usd, 6)

    @property
    def saved_share(self) -> float | None:
        """The savings as a share of the on-demand cost, or None without prices."""
        return self.saved_usd / self.on_demand_usd if self.saved_usd is not None and self.on_demand_usd else None

    def as_dict(self) -> dict[str, Any]:
        """Return the report's cost details, without the two totals."""
        return {
            "lines": self.lines,
            "prices": self.prices,
            "source": self.source,
            "saved_usd": self.saved_usd,
            "saved_share": self.saved_share,
            "price_date": self.price_date,
            "price_source": self.price_source,
            "currency": self.currency,
        }


def bill(instances: Sequence[Mapping[str, Any]], prices: Mapping[str, Any], last_seconds: float) -> Costs:
    """Return the cost of the instances over their lifetimes. Running instances are billed until `last_seconds`."""
    hourly = prices.get("hourly", {})
    problems: dict[str, None] = {}
    lines = []
    for instance in instances:
        ended = instance["ended"] if instance["ended"] is not None else last_seconds
        seconds = max(0.0, ended - instance["launched"])
        billed_hours = max(seconds, MIN_SECONDS) / 3600
        on_demand = _price(hourly, instance["type"], "on_demand", problems)
        market = "spot" if instance["market"] == "spot" else "on_demand"
        paid = on_demand if market == "on_demand" else _price(hourly, instance["type"], market, problems)
        lines.append(
            {
                "instance_id": instance["id"],
                "type": instance["type"],
                "market": instance["market"],
                "seconds": round(seconds, 3),
                "hourly_usd": paid,
                "hourly_on_demand_usd": on_demand,
                "cost_usd": None if paid is None else round(paid * billed_hours, 6),
                "cost_on_demand_usd": None if on_demand is None else round(on_demand * billed_hours, 6),
            }
        )
    if not hourly:
        problems = {"the price table is empty: cannot compute costs": None}
    return Costs(
        lines,
        _total(lines, "cost_usd"),
        _total(lines, "cost_on_demand_usd"),
        prices.get("date"),
        prices.get("source"),
        str(prices.get("currency", "USD")),
        list(problems),
        _price_rows(lines, hourly),
    )


def ledger_bill(entries: Sequence[Entry], prices: Mapping[str, Any]) -> Costs:
    """Return the cost of the instances from the ledger's entries for one run."""
    by_instance: dict[str, list[Entry]] = {}
    for entry in entries:
        by_instance.setdefault(entry.instance_id, []).append(entry)
    lines = []
    for instance_id, found in by_instance.items():
        seconds, usd, full = (
            sum(getattr(entry.charge, name) for entry in found) for name in ("seconds", "usd", "on_demand_usd")
        )
        lines.append(
            {
                "instance_id": instance_id,
                "type": found[0].instance_type or "unknown type",
                "market": found[0].market or None,
                "seconds": round(seconds, 3),
                "hourly_usd": usd / (seconds / 3600) if seconds else None,
                "hourly_on_demand_usd": full / (seconds / 3600) if seconds else None,
                "cost_usd": round(usd, 6),
                "cost_on_demand_usd": round(full, 6),
            }
        )
    return Costs(
        lines,
        _total(lines, "cost_usd"),
        _total(lines, "cost_on_demand_usd"),
        prices.get("date"),
        prices.get("source"),
        str(prices.get("currency", "USD")),
        [],
        _price_rows(lines, prices.get("hourly", {})),
        "ledger of the run controller",
    )


def _price_rows(lines: Sequence[Mapping[str, Any]], hourly: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": name, **{market: hourly.get(name, {}).get(market) for market in ("on_demand", "spot")}}
        for name in sorted({str(line["type"]) for line in lines})
    ]


def _price(hourly: Mapping[str, Any], instance_type: str, market: str, problems: dict[str, None]) -> float | None:
    price = hourly.get(instance_type, {}).get(market)
    if not isinstance(price, (int, float)):
        problems[f"the price table has no {market.replace('_', '-')} price for {instance_type}"] = None
        return None
    return float(price)


def _total(lines: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the sum, or None if a price is missing, since a partial sum could be mistaken for the total."""
    values = [line[key] for line in lines]
    return None if not values or None in values else round(sum(values), 6)
