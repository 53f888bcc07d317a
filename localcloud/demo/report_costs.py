"""What the instances cost at spot and at on-demand prices.

Linux instances are billed by the second, sixty seconds at least: https://aws.amazon.com/ec2/pricing/on-demand/ (read
2026-11). A spot instance that AWS takes back in its first hour is free on AWS; that is not deducted here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MINIMUM_SECONDS = 60.0


@dataclass(frozen=True)
class Costs:
    """Dollars of the whole fleet: as it ran (`spot_usd`), and had every instance been on-demand."""

    lines: list[dict[str, Any]]
    spot_usd: float | None
    on_demand_usd: float | None
    price_date: str | None
    price_source: str | None
    currency: str
    problems: list[str]

    @property
    def saved_usd(self) -> float | None:
        """What running on spot capacity saved; None without prices."""
        if self.spot_usd is None or self.on_demand_usd is None:
            return None
        return round(self.on_demand_usd - self.spot_usd, 6)

    @property
    def saved_share(self) -> float | None:
        """The saving as a share of the on-demand cost; None without prices."""
        return self.saved_usd / self.on_demand_usd if self.saved_usd is not None and self.on_demand_usd else None

    def as_dict(self) -> dict[str, Any]:
        """Return what the report holds beside the two totals."""
        return {
            "lines": self.lines,
            "saved_usd": self.saved_usd,
            "saved_share": self.saved_share,
            "price_date": self.price_date,
            "price_source": self.price_source,
            "currency": self.currency,
        }


def bill(instances: Sequence[Mapping[str, Any]], prices: Mapping[str, Any], last_seconds: float) -> Costs:
    """Price each instance's lifetime; one that still runs is billed up to `last_seconds`."""
    hourly = prices.get("hourly", {})
    problems: dict[str, None] = {}
    lines = []
    for instance in instances:
        ended = instance["ended"] if instance["ended"] is not None else last_seconds
        seconds = max(0.0, ended - instance["launched"])
        billed_hours = max(seconds, MINIMUM_SECONDS) / 3600
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
        problems = {"the price table is empty: no cost can be given": None}
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
        problems[f"the price table has no {market.replace('_', '-')} price of {instance_type}"] = None
        return None
    return float(price)


def _total(lines: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the sum; None where a price is missing, since a part of a sum would look like all of it."""
    values = [line[key] for line in lines]
    return None if not values or None in values else round(sum(values), 6)
