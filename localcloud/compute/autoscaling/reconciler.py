"""Reconciles groups with their desired state: launches, replaces and terminates instances, and times out hooks."""

from __future__ import annotations

import time
from collections.abc import Callable

from localcloud.compute.autoscaling.distribution import victims
from localcloud.compute.autoscaling.launcher import GroupLauncher
from localcloud.compute.autoscaling.lifecycle import Lifecycle
from localcloud.compute.autoscaling.model import Group, GroupStore, Member
from localcloud.compute.autoscaling.refresh import InstanceRefresher
from localcloud.compute.machines.instance import Instance
from localcloud.compute.machines.inventory import Inventory
from localcloud.control_loop import ControlLoop

_REBALANCE = "an instance was taken out of service in response to an EC2 instance rebalance recommendation."
_OTHER_ZONE = "an instance was taken out of service in response to its subnet no longer being one of the group's."
_UNHEALTHY = (
    "an instance was taken out of service in response to an EC2 health check indicating it has been terminated or "
    "stopped."
)
_REPLACES = "an instance was launched in response to an unhealthy instance needing to be replaced."


class GroupReconciler:
    """Reconciles all groups in `loop`'s thread."""

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
        self.loop = ControlLoop(
            "autoscaling", self._groups, self._reconcile, self.seconds_to_next_deadline,
            failed=self._postpone, wake=store.wake,
        )  # fmt: skip

    def rebalance_recommended(self, instance: Instance) -> None:
        """Replace an instance if its group has capacity rebalancing enabled."""
        with self._store.lock:
            for group, member in self._store.members():
                if member.instance_id == instance.id and group.rebalances_capacity:
                    member.leaves_because = _REBALANCE
        self._store.wake.set()

    def capacity_changed(self) -> None:
        """Retry launches now because a pool's capacity has changed."""
        with self._store.lock:
            for group in self._store.groups.values():
                group.launch_failures, group.launch_not_before = 0, 0.0
        self._store.wake.set()

    def seconds_to_next_deadline(self) -> float | None:
        """Return the seconds until the next deadline, or None if there is none."""
        now = self._clock()
        deadlines: list[float] = []
        with self._store.lock:
            for group in self._store.groups.values():
                if group.launch_not_before > now and group.capacity < self._goal(group):
                    deadlines.append(group.launch_not_before)
                for member in group.members.values():
                    hook = self._lifecycle.next_deadline(member)
                    deadlines += [] if hook is None else [hook]
                    if group.maximum_lifetime_seconds is not None and member.is_in_service:
                        deadlines.append(member.joined + group.maximum_lifetime_seconds)
        return max(0.0, min(deadlines) - now) if deadlines else None

    def _groups(self) -> list[Group]:
        with self._store.lock:
            return list(self._store.groups.values())

    def _postpone(self, group: Group) -> None:
        group.launch_not_before = self._clock() + 1.0

    def _reconcile(self, group: Group) -> None:
        with self._store.lock:
            for member in list(group.members.values()):
                self._lifecycle.advance(group, member)
                if member.is_in_service:
                    self._check(group, member)
            self._refresher.advance(group)
            self._terminate_replaced(group)
            self._scale_in(group)
            if group.is_deleting and not group.members:
                self._store.groups.pop(group.name, None)
                return
        while (cause := self._missing(group)) is not None:
            if self.loop.is_closed or not self._launcher.launch(group, group.desired, cause):
                break
        with self._store.lock:
            if group.capacity == group.desired:
                group.user_causes.clear()
            # Instances may have reached the running state during the launches.
            for member in list(group.members.values()):
                self._lifecycle.advance(group, member)

    def _check(self, group: Group, member: Member) -> None:
        """Check an in-service instance's health, lifetime and subnet, and terminate it if necessary."""
        now = self._clock()
        instance = self._inventory.get(member.instance_id)
        if instance.state != "running":
            member.health = "Unhealthy"
            self._lifecycle.begin_end(group, member, _UNHEALTHY)
            return
        lifetime = group.maximum_lifetime_seconds
        if lifetime is not None and now >= member.joined + lifetime:
            self._lifecycle.begin_end(
                group, member, "an instance was taken out of service in response to its maximum instance lifetime."
            )
            return
        if member.leaves_because in (None, _OTHER_ZONE):
            is_home = member.subnet_id in {subnet.subnet_id for subnet in group.subnets}
            member.leaves_because = None if is_home else _OTHER_ZONE

    def _terminate_replaced(self, group: Group) -> None:
        """Terminate instances whose replacements are in service."""
        leaving = [one for one in group.members.values() if one.leaves_because and not one.is_ending]
        staying = sum(one.is_in_service and not one.leaves_because for one in group.members.values())
        for member in leaving:
            if staying + sum(not one.is_ending for one in leaving) > group.desired:
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
        if excess <= 0:
            return
        for victim in victims(group, excess, self._clock()):
            before = group.capacity
            self._lifecycle.begin_end(
                group, victim,
                "an instance was taken out of service in response to a difference between desired and actual "
                f"capacity, shrinking the capacity from {before} to {before - 1}.",
            )  # fmt: skip

    def _missing(self, group: Group) -> str | None:
        """Return the reason to launch one more instance, or None."""
        with self._store.lock:
            capacity, goal = group.capacity, self._goal(group)
            if capacity >= goal or group.is_deleting:
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
        """Return the desired capacity plus the instances that remain in service until they are replaced."""
        return group.desired + sum(bool(one.leaves_because) and one.is_in_service for one in group.members.values())
