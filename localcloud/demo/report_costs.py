"""Computes the cost of the instances at spot and on-demand prices.

Linux instances are billed per second with a minimum of 60 s: https://aws.amazon.com/ec2/pricing/on-demand/ (read
2026-11). AWS does not charge for a spot instance that it reclaims within the first hour. This module ignores that rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    )


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
