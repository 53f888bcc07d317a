"""The catalogue of instance types: what a machine has, and what it costs (dated planning figures)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class InstanceType:
    """One instance type. Prices are USD per hour of one machine in the catalogue's region.

    `efa_interfaces` is the most that a machine can have. Source (2026-11):
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html#efa-instance-types
    """

    name: str
    vcpus: int
    memory_gib: int
    gpus: int
    gpu: str | None
    gpu_memory_gib: int
    efa_interfaces: int
    nvme_gb: int
    cluster_placement: bool
    on_demand_usd: float
    spot_usd: float


@dataclass(frozen=True)
class Catalogue:
    """All known types with the date and source of their prices."""

    date: str
    region: str
    currency: str
    source: str
    types: Mapping[str, InstanceType]

    def prices(self) -> dict[str, Any]:
        """Return what a report needs to compute costs."""
        hourly = {t.name: {"on_demand": t.on_demand_usd, "spot": t.spot_usd} for t in self.types.values()}
        return {
            "date": self.date,
            "region": self.region,
            "source": self.source,
            "currency": self.currency,
            "hourly": hourly,
        }


@cache
def catalogue() -> Catalogue:
    """Return the catalogue that ships with the project."""
    loaded = json.loads(Path(__file__).with_name("instance_types.json").read_text(encoding="utf-8"))
    types = {name: InstanceType(name, **facts) for name, facts in loaded.pop("types").items()}
    return Catalogue(types=types, **loaded)
