"""The instance type catalogue: the facts from `hardware`, and each region's offerings and dated prices."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from hardware import HARDWARE_PATH, Hardware, InstanceType, Source, read_hardware
from stacks.capacity.spot_history import Interruptions, PriceRange

T = TypeVar("T")

PRICES_PATH = Path(__file__).with_name("prices.json")
DEFAULT_REGION = "us-east-1"
Purchase = Literal["on_demand", "spot", "savings_plan", "reserved"]
PURCHASES: tuple[Purchase, ...] = ("spot", "on_demand", "savings_plan", "reserved")
"""Purchase options. Savings Plan and reservation prices are hourly prices for a one-year term."""
PRICES_EXPIRE_AFTER_DAYS = 400
"""Prices older than a year can be misleading: in 2025-06, AWS cut the prices of GPU types by a third or more."""


@dataclass(frozen=True)
class Dated(Generic[T]):
    """Figures about types, with their source. The source is None if `catalogue refresh` has not read them yet."""

    source: Source | None
    types: Mapping[str, T]


@dataclass(frozen=True)
class RegionPrices:
    """The types offered in a region, each with its known Linux prices in USD per instance-hour.

    Attributes:
        spot_prices: The range of the spot prices of the last 90 days.
        interruptions: How many Spot Instances EC2 interrupts per month.
    """

    sources: Mapping[Purchase, Source]
    types: Mapping[str, Mapping[Purchase, float]]
    spot_prices: Dated[PriceRange] = field(default_factory=lambda: Dated(None, {}))
    interruptions: Dated[Interruptions] = field(default_factory=lambda: Dated(None, {}))

    def usd_per_hour(self, instance_type: str, purchase: Purchase) -> float | None:
        """Return a price, or None if unknown."""
        return self.types.get(instance_type, {}).get(purchase)


@dataclass(frozen=True)
class Catalogue:
    """All known types and regions. `regions` contains only regions with known offerings and prices."""

    hardware: Hardware
    currency: str
    region_names: tuple[str, ...]
    regions: Mapping[str, RegionPrices]

    @property
    def types(self) -> Mapping[str, InstanceType]:
        """The known types, keyed by name."""
        return self.hardware.types

    def usd_per_hour(self, region: str, instance_type: str, purchase: Purchase) -> float | None:
        """Return a price in a region, or None if unknown."""
        prices = self.regions.get(region)
        return None if prices is None else prices.usd_per_hour(instance_type, purchase)

    def regions_with(self, instance_type: str) -> list[str]:
        """Return the known regions that offer a type."""
        return [region for region, prices in self.regions.items() if instance_type in prices.types]

    def prices(self, region: str = DEFAULT_REGION) -> dict[str, Any]:
        """Return a region's prices as JSON values, for reports that compute costs.

        Raises:
            KeyError: The catalogue does not have prices for the region.
        """
        prices = self.regions[region]
        return {
            "date": prices.sources["on_demand"].date.isoformat(),
            "region": region,
            "source": "; ".join(f"{purchase}: {one.source}" for purchase, one in prices.sources.items()),
            "currency": self.currency,
            "hourly": {name: dict(known) for name, known in prices.types.items()},
        }


def read_catalogue(hardware_path: Path = HARDWARE_PATH, prices_path: Path = PRICES_PATH) -> Catalogue:
    """Read the catalogue from a facts file and a price file."""
    loaded = json.loads(prices_path.read_text(encoding="utf-8"))
    regions = {
        name: RegionPrices(
            sources={
                purchase: Source(date.fromisoformat(one["date"]), one["source"])
                for purchase, one in region["sources"].items()
            },
            types=region["types"],
            spot_prices=_dated(region.get("spot_prices"), PriceRange),
            interruptions=_dated(region.get("interruptions"), Interruptions),
        )
        for name, region in loaded["prices"].items()
    }
    return Catalogue(
        hardware=read_hardware(hardware_path),
        currency=loaded["currency"],
        region_names=tuple(sorted({*loaded["regions"]["names"], *regions})),
        regions=regions,
    )


def _dated(section: Any, kind: Callable[..., T]) -> Dated[T]:
    if section is None:
        return Dated(None, {})
    source = Source(date.fromisoformat(section["date"]), section["source"])
    return Dated(source, {name: kind(**row) for name, row in section["types"].items()})


@cache
def catalogue() -> Catalogue:
    """Return the catalogue that ships with the project."""
    return read_catalogue()
