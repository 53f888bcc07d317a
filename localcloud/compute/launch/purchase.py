"""A launch's purchase options: market, capacity reservation, tenancy, partition and maintenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from localcloud.api import ApiError
from localcloud.compute.capacity import Market

Lifecycle = Literal["on-demand", "spot", "capacity-block", "interruptible-capacity-reservation"]
Preference = Literal["open", "none", "capacity-reservations-only"]
_LIFECYCLES = ("on-demand", "spot", "capacity-block", "interruptible-capacity-reservation")
_PREFERENCES = ("open", "none", "capacity-reservations-only")


@dataclass(frozen=True)
class PurchaseOptions:
    """A launch's purchase options. `lifecycle` is the InstanceLifecycle that DescribeInstances returns."""

    lifecycle: Lifecycle = "on-demand"
    preference: Preference = "open"
    reservation_id: str | None = None
    reservation_group_arn: str | None = None
    tenancy: str = "default"
    partition: int | None = None
    maintenance: Mapping[str, Any] | None = None

    @property
    def market(self) -> Market:
        """The market that provides the launch's capacity if it does not use a reservation."""
        return "spot" if self.lifecycle == "spot" else "on-demand"


def read_purchase(merged: Mapping[str, Any]) -> tuple[PurchaseOptions, str | None]:
    """Return the purchase options and maximum spot price defined by RunInstances parameters.

    Raises:
        ApiError: Options are unknown, mutually exclusive or not supported.
    """
    lifecycle, max_price = _market(merged.get("InstanceMarketOptions") or {})
    reservation = merged.get("CapacityReservationSpecification") or {}
    target = reservation.get("CapacityReservationTarget") or {}
    preference = reservation.get("CapacityReservationPreference") or "open"
    placement = merged.get("Placement") or {}
    if preference not in _PREFERENCES:
        raise ApiError("InvalidParameterValue", f"CapacityReservationPreference '{preference}' is invalid")
    if target.get("CapacityReservationId") and target.get("CapacityReservationResourceGroupArn"):
        raise ApiError("InvalidParameterCombination", "CapacityReservationTarget accepts an ID or a group, not both")
    if target and reservation.get("CapacityReservationPreference") in ("open", "none"):
        raise ApiError(
            "InvalidParameterCombination",
            "CapacityReservationPreference and CapacityReservationTarget are mutually exclusive",
        )
    if lifecycle == "spot" and target:
        raise ApiError("InvalidParameterCombination", "Spot Instances cannot run in a capacity reservation")
    tenancy = placement.get("Tenancy") or "default"
    if tenancy not in ("default", "dedicated"):
        raise ApiError("UnsupportedOperation", f"Tenancy '{tenancy}' is not emulated; use default or dedicated")
    return PurchaseOptions(
        lifecycle=lifecycle,
        preference=cast(Preference, preference),
        reservation_id=target.get("CapacityReservationId"),
        reservation_group_arn=target.get("CapacityReservationResourceGroupArn"),
        tenancy=tenancy,
        partition=placement.get("PartitionNumber"),
        maintenance=merged.get("MaintenanceOptions"),
    ), max_price


def _market(options: Mapping[str, Any]) -> tuple[Lifecycle, str | None]:
    kind = options.get("MarketType") or "on-demand"
    if kind not in _LIFECYCLES:
        raise ApiError("InvalidParameterValue", f"MarketType '{kind}' is not one of {', '.join(_LIFECYCLES)}")
    spot = options.get("SpotOptions") or {}
    if spot and kind != "spot":
        raise ApiError("InvalidParameterCombination", f"SpotOptions cannot be used with MarketType '{kind}'")
    if spot.get("InstanceInterruptionBehavior", "terminate") != "terminate":
        raise ApiError(
            "UnsupportedOperation",
            f"InstanceInterruptionBehavior '{spot['InstanceInterruptionBehavior']}' is not emulated by the embedded "
            "cloud; use 'terminate'",
        )
    return cast(Lifecycle, kind), spot.get("MaxPrice")
