"""The one thread that brings fleets to what they should be: fills, replaces, ends what is too much, lets them expire.

Not here: the API (`ec2_operations`, `spot_operations`), how one instance is launched (`launcher`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from localcloud.compute.capacity import Market
from localcloud.compute.fleets.allocation import excess
from localcloud.compute.fleets.history import FleetHistory
from localcloud.compute.fleets.launcher import FleetLauncher
from localcloud.compute.fleets.model import Fleet, FleetMember, FleetStore
from localcloud.compute.instance import Instance
from localcloud.compute.inventory import Inventory

_logger = logging.getLogger(__name__)
_MARKETS: tuple[Market, ...] = ("on-demand", "spot")


class FleetKeeper:
    """Wakes when anything changed or a deadline passes, and looks at every fleet that is not over."""

    def __init__(
        self, store: FleetStore, inventory: Inventory, launcher: FleetLauncher, history: FleetHistory,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._inventory = inventory
        self._launcher = launcher
        self._history = history
        self._clock = clock
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleets", daemon=True)

    def start(self) -> None:
        """Begin to watch the fleets."""
        self._thread.start()

    def close(self) -> None:
        """Stop; what runs keeps running."""
        self._closed.set()
        self._store.wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def instance_changed(self, instance: Instance) -> None:
        """Look again because an instance changed its state."""
        self._store.wake.set()

    def rebalance_recommended(self, instance: Instance) -> None:
        """Launch a replacement in a fleet with capacity rebalancing; the old instance counts no more."""
        with self._store.lock:
            found = self._store.of_instance(instance.id)
            if found is not None and found[0].plan.rebalance is not None:
                found[1].is_superseded = True
        self._store.wake.set()

    def capacity_changed(self) -> None:
        """Try to launch again at once, because pools give more or less than before."""
        with self._store.lock:
            for fleet in self._store.fleets.values():
                fleet.failures, fleet.retry_at = 0, 0.0
        self._store.wake.set()

    def end(self, fleet: Fleet, *, terminates: bool) -> None:
        """End a fleet; it launches no more, and its instances end with it or run on."""
        with self._store.lock:
            fleet.state = "deleted_terminating" if terminates else "deleted_running"
            self._history.changed(fleet, fleet.state)
            ids = [one.instance_id for one in fleet.live()] if terminates else []
        if ids:
            self._inventory.terminate(ids)
        self._store.wake.set()

    def seconds_to_next_deadline(self) -> float | None:
        """Return how long to sleep when nothing changes; None without limit."""
        now = self._clock()
        deadlines: list[float] = []
        with self._store.lock:
            for fleet in self._store.fleets.values():
                if not fleet.is_active or fleet.plan.fleet_type == "instant":
                    continue
                moments = (fleet.plan.valid_from, fleet.plan.valid_until)
                deadlines += [one for one in moments if one is not None and one > now]
                deadlines += [one.ends_at for one in fleet.live() if one.ends_at is not None]
                if fleet.retry_at > now and self._is_short(fleet):
                    deadlines.append(fleet.retry_at)
        return max(0.0, min(deadlines) - now) if deadlines else None

    def _run(self) -> None:
        while not self._closed.is_set():
            self._store.wake.wait(self.seconds_to_next_deadline())
            self._store.wake.clear()
            with self._store.lock:
                fleets = [one for one in self._store.fleets.values() if one.state != "deleted"]
            for fleet in fleets:
                if self._closed.is_set():
                    return
                try:
                    self._look_at(fleet)
                except Exception:  # noqa: BLE001 - top level of the thread: one fleet's fault must not stop the others
                    _logger.exception("%s: keeping it failed", fleet.fleet_id)
                    self._launcher.postpone(fleet)

    def _look_at(self, fleet: Fleet) -> None:
        now = self._clock()
        with self._store.lock:
            self._see_what_ended(fleet)
            if not fleet.is_active:
                if all(self._inventory.get(one).state == "terminated" for one in fleet.members):
                    fleet.state = "deleted"
                    self._history.changed(fleet, "deleted")
                return
            if fleet.plan.fleet_type == "instant" or (fleet.plan.valid_from or 0.0) > now:
                return
            is_over = fleet.plan.valid_until is not None and now >= fleet.plan.valid_until
            leaving = [] if is_over else self._leaving(fleet, now)
            if is_over:
                self._history.informed(fleet, "fleetRequestExpired", "the request has reached its end date")
        if is_over:
            self.end(fleet, terminates=fleet.plan.terminates_on_expiry)
            return
        if leaving:
            self._inventory.terminate([one.instance_id for one in leaving])
            with self._store.lock:
                self._see_what_ended(fleet)
        if fleet.retry_at <= now:
            filled = {market: self._launcher.fill(fleet, market) for market in _MARKETS}
            if not all(filled.values()):
                self._launcher.postpone(fleet)

    def _see_what_ended(self, fleet: Fleet) -> None:
        for member in fleet.live():
            instance = self._inventory.get(member.instance_id)
            member.is_healthy = instance.state in ("pending", "running")
            if not instance.is_live:
                member.has_ended = True
                if not member.is_superseded:
                    fleet.ended_weight[member.market] += member.pool.weight
                self._history.instance(fleet, member, "terminated", instance.specification.image_id)

    def _leaving(self, fleet: Fleet, now: float) -> list[FleetMember]:
        """Return the instances to end now: too much, unhealthy, or replaced after a rebalance recommendation."""
        leaving = [one for one in fleet.live() if one.ends_at is not None and one.ends_at <= now]
        delay = fleet.plan.rebalance.termination_delay_seconds if fleet.plan.rebalance is not None else None
        for member in fleet.live():
            is_replaced = fleet.fulfilled(member.market) >= fleet.plan.targets.of(member.market)
            if member.is_superseded and member.ends_at is None and delay is not None and is_replaced:
                member.ends_at = now + delay
        if fleet.plan.replaces_unhealthy:
            leaving += [one for one in fleet.live() if not one.is_healthy]
        if fleet.plan.terminates_excess and fleet.plan.fleet_type == "maintain":
            leaving += [one for market in _MARKETS for one in excess(fleet, market)]
        return leaving

    @staticmethod
    def _is_short(fleet: Fleet) -> bool:
        return any(fleet.fulfilled(market) < fleet.plan.targets.of(market) for market in _MARKETS)
