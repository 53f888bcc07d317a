"""Reconciles fleets with their targets: launches, replaces and terminates instances."""

from __future__ import annotations

import time
from collections.abc import Callable

from localcloud.compute.capacity import Market
from localcloud.compute.fleets.allocation import excess
from localcloud.compute.fleets.history import FleetHistory
from localcloud.compute.fleets.launcher import FleetLauncher
from localcloud.compute.fleets.model import Fleet, FleetMember, FleetStore
from localcloud.compute.machines.instance import Instance
from localcloud.compute.machines.inventory import Inventory
from localcloud.control_loop import ControlLoop

_MARKETS: tuple[Market, ...] = ("on-demand", "spot")


class FleetReconciler:
    """Reconciles all fleets that have not been deleted, in `loop`'s thread."""

    def __init__(
        self, store: FleetStore, inventory: Inventory, launcher: FleetLauncher, history: FleetHistory,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._inventory = inventory
        self._launcher = launcher
        self._history = history
        self._clock = clock
        self.loop = ControlLoop(
            "fleets", self._fleets, self._reconcile, self.seconds_to_next_deadline,
            failed=launcher.postpone, wake=store.wake,
        )  # fmt: skip

    def rebalance_recommended(self, instance: Instance) -> None:
        """If the fleet has capacity rebalancing, stop counting the instance so that a replacement is launched."""
        with self._store.lock:
            found = self._store.of_instance(instance.id)
            if found is not None and found[0].plan.rebalance is not None:
                found[1].is_superseded = True
        self._store.wake.set()

    def capacity_changed(self) -> None:
        """Retry launches now because a pool's capacity has changed."""
        with self._store.lock:
            for fleet in self._store.fleets.values():
                fleet.failures, fleet.retry_at = 0, 0.0
        self._store.wake.set()

    def end(self, fleet: Fleet, *, terminates: bool) -> None:
        """Delete a fleet, and either terminate its instances or leave them running."""
        with self._store.lock:
            fleet.state = "deleted_terminating" if terminates else "deleted_running"
            self._history.changed(fleet, fleet.state)
            ids = [one.instance_id for one in fleet.live()] if terminates else []
        if ids:
            self._inventory.terminate(ids)
        self._store.wake.set()

    def seconds_to_next_deadline(self) -> float | None:
        """Return the seconds until the next deadline, or None if there is none."""
        now = self._clock()
        deadlines: list[float] = []
        with self._store.lock:
            for fleet in self._store.fleets.values():
                if not fleet.is_active:
                    continue
                deadlines += [one.ends_at for one in fleet.live() if one.ends_at is not None]
                if fleet.retry_at > now and self._is_short(fleet):
                    deadlines.append(fleet.retry_at)
        return max(0.0, min(deadlines) - now) if deadlines else None

    def _fleets(self) -> list[Fleet]:
        with self._store.lock:
            return [one for one in self._store.fleets.values() if one.state != "deleted"]

    def _reconcile(self, fleet: Fleet) -> None:
        now = self._clock()
        with self._store.lock:
            self._update_members(fleet)
            if not fleet.is_active:
                if all(self._inventory.get(one).state == "terminated" for one in fleet.members):
                    fleet.state = "deleted"
                    self._history.changed(fleet, "deleted")
                return
            leaving = self._leaving(fleet, now)
        if leaving:
            self._inventory.terminate([one.instance_id for one in leaving])
            with self._store.lock:
                self._update_members(fleet)
        if fleet.retry_at <= now:
            filled = {market: self._launcher.fill(fleet, market) for market in _MARKETS}
            if not all(filled.values()):
                self._launcher.postpone(fleet)

    def _update_members(self, fleet: Fleet) -> None:
        for member in fleet.live():
            instance = self._inventory.get(member.instance_id)
            member.is_healthy = instance.state in ("pending", "running")
            if not instance.is_live:
                member.has_ended = True
                self._history.instance(fleet, member, "terminated", instance.specification.image_id)

    def _leaving(self, fleet: Fleet, now: float) -> list[FleetMember]:
        """Return the instances to terminate now: excess, unhealthy, or already replaced by rebalancing."""
        leaving = [one for one in fleet.live() if one.ends_at is not None and one.ends_at <= now]
        delay = fleet.plan.rebalance.termination_delay_seconds if fleet.plan.rebalance is not None else None
        for member in fleet.live():
            is_replaced = fleet.fulfilled(member.market) >= fleet.plan.targets.of(member.market)
            if member.is_superseded and member.ends_at is None and delay is not None and is_replaced:
                member.ends_at = now + delay
        if fleet.plan.replaces_unhealthy:
            leaving += [one for one in fleet.live() if not one.is_healthy]
        if fleet.plan.terminates_excess:
            leaving += [one for market in _MARKETS for one in excess(fleet, market)]
        return leaving

    @staticmethod
    def _is_short(fleet: Fleet) -> bool:
        return any(fleet.fulfilled(market) < fleet.plan.targets.of(market) for market in _MARKETS)
