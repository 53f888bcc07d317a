"""Facts about instance types, as DescribeInstanceTypes tells them, and the prices of the local market.

Not here: which types there are (moto holds AWS's list), and how many instances a pool still gives (`capacity`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from localcloud.api import ApiError

_USD_PER_VCPU_HOUR = 0.0425
_USD_PER_GIB_HOUR = 0.0028
_USD_PER_GPU_GIB_HOUR = 0.05
_LEAST_SPOT_SHARE, _SPOT_SHARE_RANGE = 0.30, 0.40


class InstanceTypes:
    """The instance types that moto knows from AWS's list.

    The prices are the local market's own: of the order of AWS's, steady, and different for each type and zone, so that
    allocation by price and maximum prices have something to decide on. They are not AWS's prices.
    """

    def names(self) -> list[str]:
        """Return the names of all types, sorted."""
        return sorted(INSTANCE_TYPES)

    def facts(self, name: str) -> Mapping[str, Any]:
        """Return what DescribeInstanceTypes tells of a type.

        Raises:
            ApiError: InvalidParameterValue for a type that does not exist.
        """
        facts: Mapping[str, Any] | None = INSTANCE_TYPES.get(name)
        if facts is None:
            raise ApiError(
                "InvalidParameterValue",
                f"Invalid value '{name}' for InstanceType: the following supplied instance types do not exist",
            )
        return facts

    def on_demand_usd_per_hour(self, name: str) -> float:
        """Return the on-demand price of an instance of the type."""
        facts = self.facts(name)
        gpu_mib = facts.get("GpuInfo", {}).get("TotalGpuMemoryInMiB", 0)
        price: float = (
            facts["VCpuInfo"]["DefaultVCpus"] * _USD_PER_VCPU_HOUR
            + facts["MemoryInfo"]["SizeInMiB"] / 1024 * _USD_PER_GIB_HOUR
            + gpu_mib / 1024 * _USD_PER_GPU_GIB_HOUR
        )
        return round(price, 4)

    def spot_usd_per_hour(self, name: str, zone: str) -> float:
        """Return the spot price of the type in a zone: 30 to 70 % of the on-demand price, the same each time."""
        draw = int.from_bytes(hashlib.sha256(f"{name}/{zone}".encode()).digest()[:4]) / 2**32
        return round(self.on_demand_usd_per_hour(name) * (_LEAST_SPOT_SHARE + _SPOT_SHARE_RANGE * draw), 4)
