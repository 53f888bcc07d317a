"""Facts about instance types, as DescribeInstanceTypes tells them, and the prices of the local market.

Not here: which types there are (moto holds AWS's list), and how many instances a pool still gives (`capacity`).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Clients

_USD_PER_VCPU_HOUR = 0.0425
_USD_PER_GIB_HOUR = 0.0028
_USD_PER_GPU_GIB_HOUR = 0.05
_LEAST_SPOT_SHARE, _SPOT_SHARE_RANGE = 0.30, 0.40


class InstanceTypes:
    """The instance types of the account's region.

    The prices are the local market's own: of the order of AWS's, steady, and different for each type and zone, so that
    allocation by price and maximum prices have something to decide on. They are not AWS's prices.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._facts: dict[str, Mapping[str, Any]] = {}

    def facts(self, name: str) -> Mapping[str, Any]:
        """Return what DescribeInstanceTypes tells of a type.

        Raises:
            ApiError: InvalidParameterValue for a type that does not exist.
        """
        with self._lock:
            known = self._facts.get(name)
        if known is None:
            try:
                known = self._clients.direct("ec2").describe_instance_types(InstanceTypes=[name])["InstanceTypes"][0]
            except ClientError as error:
                raise ApiError(
                    "InvalidParameterValue",
                    f"Invalid value '{name}' for InstanceType: {error.response['Error']['Message']}",
                ) from error
            with self._lock:
                self._facts[name] = known
        return known

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
