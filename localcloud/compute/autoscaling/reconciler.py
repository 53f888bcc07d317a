"""The one thread that brings groups to what they should be: replaces, launches, ends, and lets hooks time out.

Not here: the API (`operations`), the single steps of an instance (`lifecycle`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from localcloud.compute.autoscaling.distribution import victims
from localcloud.compute.autoscaling.launcher import GroupLauncher
from localcloud.compute.autoscaling.lifecycle import Lifecycle
from localcloud.compute.autoscaling.model import Group, GroupStore, Member
from localcloud.compute.autoscaling.refresh import InstanceRefresher
from localcloud.compute.instance import Instance
from localcloud.compute.inventory import Inventory

_logger = logging.getLogger(__name__)

_REBALANCE = "an instance was taken out of service in response to an EC2 instance rebalance recommendation."
_OTHER_ZONE = "an instance was taken out of service in response to its subnet no longer being one of the group's."
_REPLACES = "an instance was launched in response to an unhealthy instance needing to be replaced."


class Reconciler:
    """Wakes when anything changed or a deadline passes, and looks at every group."""

    def __init__(
        self, store: GroupStore, inventory: Inventory, lifecycle: Lifecycle, launcher: GroupLauncher,
        refresher: InstanceRefresher, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._inventory = inventory
        self._lifecycle = lifecycle
        self._launcher = launcher
        self._refresher = refresher
        self._clock = clock
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="autoscaling", daemon=True)

    def start(self) -> None:
        """Begin to watch the groups."""
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
        """Replace an instance of a group with capacity rebalancing."""
        with self._store.lock:
            for group, member in self._store.members():
                if member.instance_id == instance.id and group.rebalances_capacity:
                    member.leaves_because = _REBALANCE
        self._store.wake.set()

    def capacity_changed(self) -> None:
        """Try to launch again at once, because pools give more or less than before."""
        with self._store.lock:
            for group in self._store.groups.values():
                group.launch_failures, group.launch_not_before = 0, 0.0
        self._store.wake.set()

    def seconds_to_next_deadline(self) -> float | None:
        """Return how long to sleep when nothing changes; None without limit."""
        now = self._clock()
        deadlines: list[float] = []
        with self._store.lock:
            for group in self._store.groups.values():
                if group.launch_not_before > now and group.capacity < self._goal(group):
                    deadlines.append(group.launch_not_before)
                warm = self._refresher.next_deadline(group)
                deadlines += [] if warm is None else [warm]
                for member in group.members.values():
                    hook = self._lifecycle.next_deadline(member)
                    deadlines += [] if hook is None else [hook]
                    # One that may not be ended has no deadline: resuming the process wakes this thread.
                    if group.maximum_lifetime_seconds is not None and member.is_in_service and group.may("Terminate"):
                        deadlines.append(member.joined + group.maximum_lifetime_seconds)
        return max(0.0, min(deadlines) - now) if deadlines else None

    def _run(self) -> None:
        while not self._closed.is_set():
            self._store.wake.wait(self.seconds_to_next_deadline())
            self._store.wake.clear()
            with self._store.lock:
                groups = list(self._store.groups.values())
            for group in groups:
                if self._closed.is_set():
                    return
                try:
                    self._look_at(group)
                except Exception:  # noqa: BLE001 - top level of the thread: one group's fault must not stop the others
                    _logger.exception("%s: reconciling failed", group.name)
                    group.launch_not_before = self._clock() + 1.0

    def _look_at(self, group: Group) -> None:
        with self._store.lock:
            for member in list(group.members.values()):
                self._lifecycle.advance(group, member)
                if member.is_in_service:
                    self._check(group, member)
            self._refresher.advance(group)
            self._end_those_replaced(group)
            self._scale_in(group)
            if group.is_deleting and not group.members:
                self._store.groups.pop(group.name, None)
                return
        while (cause := self._missing(group)) is not None:
            if self._closed.is_set() or not self._launcher.launch(group, group.desired, cause):
                break
        with self._store.lock:
            if group.capacity == group.desired:
                group.user_causes.clear()
            # An instance may have come to run while others were launched.
            for member in list(group.members.values()):
                self._lifecycle.advance(group, member)

    def _check(self, group: Group, member: Member) -> None:
        """Look at the health of an instance in service, and end it when it is to be replaced."""
        now = self._clock()
        instance = self._inventory.get(member.instance_id)
        if group.may("HealthCheck") and instance.state != "running":
            member.health = "Unhealthy"
            member.health_cause = "an EC2 health check indicating it has been terminated or stopped"
        if member.health != "Healthy" and group.may("ReplaceUnhealthy") and group.may("Terminate"):
            self._lifecycle.begin_end(
                group, member,
                f"an instance was taken out of service in response to {member.health_cause or 'a user health-check'}.",
            )  # fmt: skip
            return
        lifetime = group.maximum_lifetime_seconds
        if lifetime is not None and now >= member.joined + lifetime and group.may("Terminate"):
            self._lifecycle.begin_end(
                group, member, "an instance was taken out of service in response to its maximum instance lifetime."
            )
            return
        if member.leaves_because in (None, _OTHER_ZONE):
            is_home = member.subnet_id in {subnet.subnet_id for subnet in group.subnets}
            member.leaves_because = None if is_home or not group.may("AZRebalance") else _OTHER_ZONE

    def _end_those_replaced(self, group: Group) -> None:
        """End instances that had to be replaced before they go, now that there is enough without them."""
        leaving = [one for one in group.members.values() if one.leaves_because and not one.is_ending]
        staying = sum(one.weight for one in group.members.values() if one.is_in_service and not one.leaves_because)
        for member in leaving if group.may("Terminate") else ():
            if staying + sum(one.weight for one in leaving if not one.is_ending) - member.weight >= group.desired:
                assert member.leaves_because is not None
                self._lifecycle.begin_end(group, member, member.leaves_because)

    def _scale_in(self, group: Group) -> None:
        if group.is_deleting:
            for member in list(group.members.values()):
                self._lifecycle.begin_end(
                    group, member, "an instance was taken out of service in response to a user deleting the group."
                )
            return
        excess = group.capacity - self._goal(group)
        if excess <= 0 or not group.may("Terminate"):
            return
        for victim in victims(group, excess, self._clock()):
            before = group.capacity
            self._lifecycle.begin_end(
                group, victim,
                "an instance was taken out of service in response to a difference between desired and actual "
                f"capacity, shrinking the capacity from {before} to {before - victim.weight}.",
            )  # fmt: skip

    def _missing(self, group: Group) -> str | None:
        """Return the cause to launch one more instance, or None."""
        with self._store.lock:
            capacity, goal = group.capacity, self._goal(group)
            if capacity >= goal or group.is_deleting or not group.may("Launch"):
                return None
            if self._clock() < group.launch_not_before:
                return None
            if not group.user_causes and any(one.health != "Healthy" for one in group.members.values()):
                return _REPLACES
            return (
                "an instance was started in response to a difference between desired and actual capacity, "
                f"increasing the capacity from {capacity} to {goal}."
            )

    @staticmethod
    def _goal(group: Group) -> int:
        """Return the capacity wanted now: what is desired, and those that leave only when they are replaced."""
        extra = sum(one.weight for one in group.members.values() if one.leaves_because and one.is_in_service)
        return group.desired + extra
