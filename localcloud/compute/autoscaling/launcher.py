"""Launches instances for groups, trying one zone and pool after another.

The launcher runs in the reconciler's thread and does not hold the store's lock during EC2 calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localcloud.api import ApiError
from localcloud.compute.autoscaling.activities import ActivityLog
from localcloud.compute.autoscaling.distribution import ZoneAttempt, attempts, reservation_attempts
from localcloud.compute.autoscaling.lifecycle import GROUP_TAG
from localcloud.compute.autoscaling.model import Group, GroupStore, Member, Override, TemplateReference
from localcloud.compute.capacity import Market
from localcloud.compute.launch.resolver import LaunchResolver, LaunchSpecification
from localcloud.compute.machines.instance import Instance
from localcloud.compute.machines.inventory import Inventory
from localcloud.control_loop import retry_seconds

_ROLE = "autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
_NO_CAPACITY = ("InsufficientInstanceCapacity", "ReservationCapacityExceeded")
_UNFULFILLABLE = (
    "UnfulfillableCapacity - Unable to fulfill capacity due to your request configuration. Please adjust your request "
    "and try again."
)


class GroupLauncher:
    """Adds one instance at a time to groups."""

    def __init__(
        self, store: GroupStore, inventory: Inventory, resolver: LaunchResolver, activities: ActivityLog,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._inventory = inventory
        self._resolver = resolver
        self._activities = activities
        self._clock = clock

    def launch(self, group: Group, desired: int, cause: str) -> bool:
        """Launch an instance. Return False if all pools fail, which delays the group's next attempt."""
        with self._store.lock:
            if group.is_deleting:
                return False
            planned = list(attempts(group, desired))
            group.is_launching = True
        try:
            return self._try(group, planned, cause)
        finally:
            with self._store.lock:
                group.is_launching = False

    def _try(self, group: Group, planned: Sequence[ZoneAttempt], cause: str) -> bool:
        for attempt in planned:
            try:
                instance = self._in_zone(group, attempt)
            except ApiError as error:
                is_capacity = error.code in _NO_CAPACITY
                self._report_failure(group, attempt, cause, error)
                if not is_capacity and error.code not in ("InvalidPlacementGroup.InUse",):
                    break
            else:
                self._join(group, instance, cause)
                return True
        with self._store.lock:
            group.launch_failures += 1
            group.launch_not_before = self._clock() + retry_seconds(group.launch_failures)
        return False

    def _in_zone(self, group: Group, attempt: ZoneAttempt) -> Instance:
        """Launch in a zone's first pool that has capacity. If all pools fail, raise the last pool's ApiError."""
        refusal: ApiError | None = None
        for override in attempt.overrides:
            for reservation in reservation_attempts(group, attempt.market):
                try:
                    specification = self._specification(group, attempt, override, reservation)
                    (instance,) = self._inventory.launch(specification, 1, group=group.name, by=_ROLE)
                    return instance
                except ApiError as error:
                    refusal = error
                    # Skip reservations that have expired or are for a different type or zone.
                    if error.code not in _NO_CAPACITY and not reservation:
                        raise
        assert refusal is not None, "a group has at least one override"
        raise refusal

    def _specification(
        self, group: Group, attempt: ZoneAttempt, override: Override, reservation: Mapping[str, Any]
    ) -> LaunchSpecification:
        with self._store.lock:
            tags = [{"Key": tag.key, "Value": tag.value} for tag in group.tags.values() if tag.propagates]
            distribution = group.plan.distribution
            parameters: dict[str, Any] = {
                "LaunchTemplate": (override.template or group.plan.template).as_parameter(),
                "SubnetId": attempt.subnet.subnet_id,
                "TagSpecifications": [
                    {"ResourceType": "instance", "Tags": [*tags, {"Key": GROUP_TAG, "Value": group.name}]}
                ],
            }
            if override.instance_type is not None:
                parameters["InstanceType"] = override.instance_type
            if reservation:
                parameters["CapacityReservationSpecification"] = reservation
            if attempt.market == "spot":
                options: dict[str, Any] = {"MarketType": "spot"}
                if distribution is not None and distribution.spot_max_price is not None:
                    options["SpotOptions"] = {"MaxPrice": distribution.spot_max_price}
                parameters["InstanceMarketOptions"] = options
        return self._resolver.resolve(parameters)

    def _join(self, group: Group, instance: Instance, cause: str) -> None:
        specification = instance.specification
        template = specification.template
        assert template is not None, "a group launches from a template"
        instance.target_lifecycle_state = "InService"
        with self._store.lock:
            group.launch_failures, group.launch_not_before = 0, 0.0
            member = Member(
                instance_id=instance.id, instance_type=specification.instance_type, zone=specification.zone,
                subnet_id=specification.subnet_id, market=specification.market,
                template=TemplateReference(template.template_id, template.name, str(template.version)),
                joined=self._clock(),
                activity=self._activities.begin(
                    group, f"Launching a new EC2 instance: {instance.id}", cause, instance_id=instance.id,
                    subnet_id=specification.subnet_id, zone=specification.zone,
                ),
            )  # fmt: skip
            assert member.activity is not None
            member.activity.status, member.activity.progress = "PreInService", 30
            group.members[instance.id] = member

    def _report_failure(self, group: Group, attempt: ZoneAttempt, cause: str, error: ApiError) -> None:
        message = _status_message(group, attempt.market, error)
        with self._store.lock:
            activity = self._activities.begin(
                group, "Launching a new EC2 instance", cause, instance_id=None,
                subnet_id=attempt.subnet.subnet_id, zone=attempt.subnet.zone,
            )  # fmt: skip
            self._activities.launch_failed(group, activity, message)


def _status_message(group: Group, market: Market | None, error: ApiError) -> str:
    """Return the status message of a failed launch. A mixed instances policy adds the market and the error's code.

    Sources (read 2026-11): https://github.com/redhat-developer/mapt/issues/576,
    https://github.com/mludvig/aws-ethereum-miner/issues/23, https://github.com/kubernetes/autoscaler/issues/1263
    """
    if group.plan.distribution is None:
        return f"{error.message} Launching EC2 instance failed."
    instances = "Spot Instances" if market == "spot" else "On-Demand Instances"
    is_unfulfillable = error.code in _NO_CAPACITY and market == "spot"
    reason = _UNFULFILLABLE if is_unfulfillable else f"{error.code} - {error.message}"
    return f"Could not launch {instances}. {reason} Launching EC2 instance failed."
