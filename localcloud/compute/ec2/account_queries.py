"""Read-only EC2 operations on instance types, offerings, spot prices and placement scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api import ApiError, Call, Clients, Handler
from localcloud.compute.capacity import CapacityPools
from localcloud.compute.describe import matches, page, timestamp, unix_seconds
from localcloud.compute.launch.instance_types import InstanceTypes
from localcloud.compute.launch.zones import Zones

MAX_TYPES = 100
BEST_SCORE, FEW_TYPES, SCORE_OF_FEW_TYPES = 9, 3, 3
"""Score for requests with fewer than three types, which is low, as on AWS.
Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-sps-works.html, 2026-11."""
_HISTORY_FILTERS = {
    "availability-zone": "AvailabilityZone", "instance-type": "InstanceType", "spot-price": "SpotPrice",
    "product-description": "ProductDescription",
}  # fmt: skip


class AccountQueries:
    """Handlers for read-only calls."""

    def __init__(
        self, clients: Clients, types: InstanceTypes, zones: Zones, pools: CapacityPools,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._clients = clients
        self._types = types
        self._zones = zones
        self._pools = pools
        self._clock = clock

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "DescribeInstanceTypes": self.instance_types,
            "DescribeInstanceTypeOfferings": self.offerings,
            "DescribeSpotPriceHistory": self.spot_prices,
            "GetSpotPlacementScores": self.placement_scores,
        }

    def instance_types(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeInstanceTypes."""
        asked = call.parameters
        if names := asked.get("InstanceTypes"):
            if asked.get("MaxResults"):
                raise ApiError("InvalidParameterCombination", "MaxResults and InstanceTypes are mutually exclusive")
            found = [self._checked(name) for name in names]
        else:
            found = [self._types.facts(name) for name in self._types.names()]
        if asked.get("Filters"):
            kept = {one["InstanceType"] for one in self._moto("describe_instance_types", asked)["InstanceTypes"]}
            found = [one for one in found if one["InstanceType"] in kept]
        return page(found, asked, "InstanceTypes", MAX_TYPES)

    def _checked(self, name: str) -> Mapping[str, Any]:
        try:
            return self._types.facts(name)
        except ApiError as error:
            raise ApiError(
                "InvalidInstanceType", f"The following supplied instance types do not exist: [{name}]"
            ) from error

    def offerings(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeInstanceTypeOfferings."""
        found = self._moto("describe_instance_type_offerings", call.parameters)["InstanceTypeOfferings"]
        return page(found, call.parameters, "InstanceTypeOfferings")

    def spot_prices(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeSpotPriceHistory: return each pool's price at the start of the period, and its changes."""
        asked = call.parameters
        start = unix_seconds(asked["StartTime"]) if asked.get("StartTime") else self._clock()
        end = unix_seconds(asked["EndTime"]) if asked.get("EndTime") else self._clock()
        filters = asked.get("Filters", [])
        by_filter = [value for one in filters if one["Name"] == "instance-type" for value in one["Values"]]
        names = asked.get("InstanceTypes") or by_filter
        if not names:
            raise ApiError("MissingParameter", "The embedded cloud returns spot prices only for named instance types")
        zones = [self._zones.checked(asked["AvailabilityZone"])] if asked.get("AvailabilityZone") else self._zones.ids()
        products = asked.get("ProductDescriptions") or ["Linux/UNIX"]
        shown = [
            {
                "AvailabilityZone": zone, "AvailabilityZoneId": self._zones.id_of(zone), "InstanceType": name,
                "ProductDescription": product, "SpotPrice": f"{usd:.6f}", "Timestamp": timestamp(moment),
            }
            for name in names
            for zone in zones
            for product in products
            if product in ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
            for moment, usd in reversed(self._types.spot_prices(name, zone, start, end))
        ]  # fmt: skip
        return page([one for one in shown if matches(filters, one, _HISTORY_FILTERS)], asked, "SpotPriceHistory")

    def placement_scores(self, call: Call) -> Mapping[str, Any]:
        """Handle GetSpotPlacementScores: compute scores from the capacity left in this region's pools."""
        asked = call.parameters
        if asked.get("InstanceRequirementsWithMetadata"):
            raise ApiError("UnsupportedOperation", "InstanceRequirements are not emulated; specify instance types")
        names = asked.get("InstanceTypes") or []
        if not names:
            raise ApiError("MissingParameter", "The request must contain the parameter InstanceTypes")
        sizes = {name: self._size(name, asked.get("TargetCapacityUnitType", "units")) for name in names}
        target = int(asked["TargetCapacity"])
        regions = asked.get("RegionNames") or [call.region]
        if call.region not in regions:
            return {"SpotPlacementScores": []}
        depths = {
            zone: sum(self._pools.depth("spot", name, zone) * size for name, size in sizes.items())
            for zone in self._zones.ids()
        }
        if asked.get("SingleAvailabilityZone"):
            scores = [
                {"Region": call.region, "AvailabilityZoneId": self._zones.id_of(zone),
                 "Score": _score(depth, target, len(names))}
                for zone, depth in depths.items()
            ]  # fmt: skip
        else:
            scores = [{"Region": call.region, "Score": _score(sum(depths.values()), target, len(names))}]
        return page(sorted(scores, key=lambda one: -int(one["Score"])), asked, "SpotPlacementScores")

    def _size(self, name: str, unit: str) -> float:
        facts = self._types.facts(name)
        if unit == "vcpu":
            return float(facts["VCpuInfo"]["DefaultVCpus"])
        return float(facts["MemoryInfo"]["SizeInMiB"]) if unit == "memory-mib" else 1.0

    def _moto(self, operation: str, asked: Mapping[str, Any]) -> Any:
        passed = {name: value for name, value in asked.items() if name not in ("MaxResults", "NextToken")}
        return getattr(self._clients.direct("ec2"), operation)(**passed)


def _score(depth: float, target: int, types: int) -> int:
    share = min(1.0, depth / max(1, target))
    score = max(1, round(BEST_SCORE * share))
    return min(score, SCORE_OF_FEW_TYPES) if types < FEW_TYPES else score
