"""The catalogue of instance types: what a machine has, where it is offered, and what it costs (dated figures)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal

CATALOGUE_PATH = Path(__file__).with_name("instance_types.json")
DEFAULT_REGION = "us-east-1"
Purchase = Literal["on_demand", "spot", "savings_plan", "reserved"]
PURCHASES: tuple[Purchase, ...] = ("spot", "on_demand", "savings_plan", "reserved")
"""Ways to pay; Savings Plan and reservation for one year, by the hour."""
PRICES_EXPIRE_AFTER_DAYS = 400
"""AWS cut the prices of its GPU types by a third and more in 2025-06: figures of more than a year mislead."""


@dataclass(frozen=True)
class InstanceType:
    """One instance type, as DescribeInstanceTypes tells it.

    `efa_interfaces` is the most that a machine can have; `ebs_mbps` the baseline bandwidth to EBS, Mbit/s; `nvme_gb`
    all local disks together, GB. `ebs_optimized` is "default" for types that always have that bandwidth to themselves.
    Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceTypeInfo.html
    """

    name: str
    vcpus: int
    memory_gib: int
    gpus: int
    gpu: str | None
    gpu_memory_gib: float
    nvme_gb: int
    nvme_disks: int
    network_cards: int
    efa_interfaces: int
    ebs_mbps: int
    ebs_optimized: str
    nitro: bool
    cluster_placement: bool

    @property
    def family(self) -> str:
        """The part of the name before the size, such as `g6e`."""
        return self.name.split(".", 1)[0]

    @property
    def gib_of_a_gpu(self) -> float:
        """Memory of one GPU, GiB; 0 without."""
        return self.gpu_memory_gib / self.gpus if self.gpus else 0.0

    @property
    def facts(self) -> dict[str, Any]:
        """What the catalogue's file holds of the type, without its name."""
        return {key: value for key, value in asdict(self).items() if key != "name"}


@dataclass(frozen=True)
class PriceSource:
    """Where the figures of one way to pay come from, and of which day they are."""

    date: date
    source: str


@dataclass(frozen=True)
class RegionPrices:
    """The types offered in a region, each with its known prices: USD per hour of one machine, Linux."""

    sources: Mapping[Purchase, PriceSource]
    types: Mapping[str, Mapping[Purchase, float]]

    def usd_per_hour(self, instance_type: str, purchase: Purchase) -> float | None:
        """Return a price, None when it is not known."""
        return self.types.get(instance_type, {}).get(purchase)


@dataclass(frozen=True)
class Catalogue:
    """All known types and regions."""

    currency: str
    facts: PriceSource
    region_names: tuple[str, ...]
    types: Mapping[str, InstanceType]
    regions: Mapping[str, RegionPrices]

    def usd_per_hour(self, region: str, instance_type: str, purchase: Purchase) -> float | None:
        """Return a price in a region, None when it is not known."""
        prices = self.regions.get(region)
        return None if prices is None else prices.usd_per_hour(instance_type, purchase)

    def prices(self, region: str = DEFAULT_REGION) -> dict[str, Any]:
        """Return what a report needs to compute the costs of a region.

        Raises:
            KeyError: The catalogue has no prices of the region.
        """
        prices = self.regions[region]
        return {
            "date": prices.sources["on_demand"].date.isoformat(),
            "region": region,
            "source": "; ".join(f"{way}: {one.source}" for way, one in prices.sources.items()),
            "currency": self.currency,
            "hourly": {name: dict(known) for name, known in prices.types.items()},
        }


def read_catalogue(path: Path) -> Catalogue:
    """Return the catalogue that a file holds."""
    loaded = json.loads(path.read_text(encoding="utf-8"))
    regions = {
        name: RegionPrices(
            sources={way: _source(one) for way, one in region["sources"].items()},
            types=region["types"],
        )
        for name, region in loaded["prices"].items()
    }
    return Catalogue(
        currency=loaded["currency"],
        facts=_source(loaded["facts"]),
        region_names=tuple(sorted({*loaded["regions"]["names"], *regions})),
        types={name: InstanceType(name, **facts) for name, facts in loaded["types"].items()},
        regions=regions,
    )


def _source(loaded: Mapping[str, str]) -> PriceSource:
    return PriceSource(date.fromisoformat(loaded["date"]), loaded["source"])


@cache
def catalogue() -> Catalogue:
    """Return the catalogue that ships with the project."""
    return read_catalogue(CATALOGUE_PATH)
