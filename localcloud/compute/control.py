"""HTTP endpoints under /_localcloud/compute/: fault injection and the list of instances."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import parse_qs

from localcloud.api import ApiError, Service
from localcloud.compute.capacity import CapacityPools, Market
from localcloud.compute.errors import ProcessTreeError
from localcloud.compute.launch.instance_types import InstanceTypes
from localcloud.compute.launch.zones import Zones
from localcloud.compute.machines.inventory import Inventory
from localcloud.compute.spot import NOTICE_SECONDS, SpotMarket

_Order = Mapping[str, Any]
_REQUIRED = object()


class ComputeControl(Service):
    """api.Service "compute", which has only HTTP endpoints. Closing it terminates all instances and stops all threads.

    `GET instances`, `GET console?instance_id=`, `POST interrupt {instance_id, notice_seconds}`,
    `POST rebalance {instance_id}`, `POST capacity {instance_type, zone, available, market}`,
    `POST pool {instance_types, zone, is_available, usd_per_hour, notice_seconds}` (spot capacity and price of a zone;
    without capacity, its spot instances are interrupted),
    `POST refuse {code, message}` (no launch succeeds until `POST refuse {}`),
    `POST freeze {instance_id, frozen}`, `POST poweroff {instance_id}`.
    """

    name = "compute"

    def __init__(
        self, inventory: Inventory, spot: SpotMarket, pools: CapacityPools, capacity_changed: Callable[[], None],
        close: Callable[[], None], types: InstanceTypes, zones: Zones, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._inventory = inventory
        self._spot = spot
        self._pools = pools
        self._capacity_changed = capacity_changed
        self._close = close
        self._types = types
        self._zones = zones
        self._clock = clock
        self._posts: Mapping[str, Callable[[_Order], None]] = {
            "interrupt": self._interrupt, "rebalance": self._rebalance, "capacity": self._capacity,
            "pool": self._pool,
            "refuse": self._refuse, "freeze": self._freeze, "poweroff": self._power_off,
        }  # fmt: skip

    def close(self) -> None:
        """Terminate all instances and stop the compute threads."""
        self._close()

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Handle a request. If it is invalid, return status 400 and `{"error": ...}`."""
        verb, _, query = path.partition("?")
        verb = verb.strip("/")
        try:
            if method == "GET" and verb == "instances":
                return 200, json.dumps([one.as_json() for one in self._inventory.all()]).encode()
            if method == "GET" and verb == "console":
                instance_id = parse_qs(query).get("instance_id", [""])[0]
                printed = self._inventory.get(instance_id).machine.console().decode(errors="replace")
                return 200, json.dumps({"instance_id": instance_id, "console": printed}).encode()
            if method == "POST" and verb in self._posts:
                self._posts[verb](_parsed(body))
                return 200, b"{}"
        except (ApiError, ProcessTreeError) as error:
            return 400, json.dumps({"error": str(error)}).encode()
        return 404, b""

    def _interrupt(self, order: _Order) -> None:
        notice = order.get("notice_seconds", NOTICE_SECONDS)
        if notice is not None and (isinstance(notice, bool) or not isinstance(notice, (int, float))):
            raise ApiError("InvalidParameterValue", f"notice_seconds: {notice!r} is not a number or null")
        self._spot.interrupt(_field(order, "instance_id", str), None if notice is None else float(notice))

    def _rebalance(self, order: _Order) -> None:
        self._spot.recommend_rebalance(_field(order, "instance_id", str))

    def _capacity(self, order: _Order) -> None:
        available = order.get("available")
        if available is not None and (isinstance(available, bool) or not isinstance(available, int) or available < 0):
            raise ApiError("InvalidParameterValue", f"available: {available!r} is not a non-negative integer or null")
        market = _field(order, "market", str, "spot")
        if market not in ("spot", "on-demand"):
            raise ApiError("InvalidParameterValue", f"market: {market!r} is not 'spot' or 'on-demand'")
        self._pools.limit(
            cast(Market, market), _field(order, "instance_type", str), _field(order, "zone", str), available
        )
        self._capacity_changed()

    def _pool(self, order: _Order) -> None:
        """Set the capacity and the price of a zone, and interrupt its spot instances if it has no capacity."""
        zone, names = self._zones.checked(_field(order, "zone", str)), _field(order, "instance_types", list)
        is_available, usd_per_hour = _field(order, "is_available", bool), _number(order, "usd_per_hour", None)
        notice_seconds = _number(order, "notice_seconds", NOTICE_SECONDS)
        for name in names:
            self._types.facts(name)
            if usd_per_hour is not None:
                self._types.set_spot_price(name, zone, usd_per_hour, self._clock())
            self._pools.limit("spot", name, zone, None if is_available else 0)
        if not is_available:
            pool = [one for one in self._inventory.all() if one.market == "spot" and one.zone == zone]
            self._interrupt_all([one.id for one in pool if one.specification.instance_type in names], notice_seconds)
        self._capacity_changed()

    def _interrupt_all(self, instance_ids: list[str], notice_seconds: float | None) -> None:
        for instance_id in instance_ids:
            try:
                self._spot.interrupt(instance_id, notice_seconds)
            except ApiError as error:
                if error.code != "IncorrectInstanceState":  # it is already ending, or it has a notice
                    raise

    def _refuse(self, order: _Order) -> None:
        fault = (_field(order, "code", str), _field(order, "message", str)) if order else None
        self._pools.refuse(fault)
        self._capacity_changed()

    def _freeze(self, order: _Order) -> None:
        instance = self._inventory.get(_field(order, "instance_id", str))
        instance.machine.set_frozen(_field(order, "frozen", bool))

    def _power_off(self, order: _Order) -> None:
        self._inventory.shut_down_from_inside(_field(order, "instance_id", str))


def _parsed(body: bytes) -> _Order:
    try:
        order = json.loads(body or b"{}")
    except ValueError as error:
        raise ApiError("InvalidParameterValue", f"the body is not JSON: {error}") from error
    if not isinstance(order, dict):
        raise ApiError("InvalidParameterValue", "the body is not a JSON object")
    return order


def _number(order: _Order, name: str, default: float | None) -> float | None:
    """Return a number of at least 0, or the default if it is null or absent."""
    value = order.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ApiError("InvalidParameterValue", f"{name}: {value!r} is not a number of at least 0")
    return float(value)


def _field(order: _Order, name: str, kind: type, default: Any = _REQUIRED) -> Any:
    value = order.get(name, default)
    if value is _REQUIRED:
        raise ApiError("MissingParameter", f"{name}: required, of type {kind.__name__}")
    if not isinstance(value, kind):
        raise ApiError("InvalidParameterValue", f"{name}: {value!r} is not of type {kind.__name__}")
    return value
