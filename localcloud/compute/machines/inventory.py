"""Launches and terminates instances, and reports their states to moto, the bus and listeners."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Clients, EventBus, as_api_error
from localcloud.compute.capacity import CapacityPools
from localcloud.compute.errors import AddressesExhausted, ProcessTreeError
from localcloud.compute.launch.addresses import AddressBook
from localcloud.compute.launch.moto_record import MotoRecord
from localcloud.compute.launch.placement import PlacementGroups
from localcloud.compute.launch.reservations import Demand, ReservationStore
from localcloud.compute.launch.resolver import LaunchSpecification
from localcloud.compute.machines.instance import (
    INSTANCE_INITIATED,
    INTERNAL_ERROR,
    INVALID_KEY,
    USER_INITIATED,
    Instance,
    Reason,
    State,
)
from localcloud.compute.machines.machine import Machine
from localcloud.compute.machines.metadata_server import MetadataServers
from localcloud.journal import RecordLog

_logger = logging.getLogger(__name__)

SHUTDOWN_GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL at shutdown."""

Listener = Callable[[Instance], None]


class Inventory:
    """All of the account's instances. Thread-safe."""

    def __init__(
        self, clients: Clients, bus: EventBus, records: RecordLog, record: MotoRecord, placement: PlacementGroups,
        pools: CapacityPools, reservations: ReservationStore, servers: MetadataServers, state_directory: Path,
        may_encrypt: Callable[[str, str], bool], clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._may_encrypt = may_encrypt
        self._clients = clients
        self._bus = bus
        self._records = records
        self._record = record
        self._placement = placement
        self._pools = pools
        self._reservations = reservations
        self._servers = servers
        self._state_directory = state_directory
        self._clock = clock
        self._addresses = AddressBook(record.taken_addresses)
        self._lock = threading.RLock()
        self._instances: dict[str, Instance] = {}
        self._listeners: list[Listener] = []
        self._workers = ThreadPoolExecutor(max_workers=32, thread_name_prefix="instances")

    def listen(self, listener: Listener) -> None:
        """Call `listener` after each state change. It must not block."""
        self._listeners.append(listener)

    def all(self) -> list[Instance]:
        """Return all instances, including terminated ones, oldest first."""
        with self._lock:
            return list(self._instances.values())

    def get(self, instance_id: str) -> Instance:
        """Return an instance.

        Raises:
            ApiError: InvalidInstanceID.NotFound if it does not exist.
        """
        with self._lock:
            if instance_id not in self._instances:
                raise ApiError("InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist")
            return self._instances[instance_id]

    def launch(
        self, specification: LaunchSpecification, count: int, *, group: str | None = None, by: str | None = None
    ) -> list[Instance]:
        """Launch all instances in one reservation, or none. The instances are pending when this method returns.

        Args:
            by: Service-linked role that launches the instances, with its path below aws-service-role/.

        Raises:
            ApiError: There is not enough capacity or free addresses, or the placement group rejects the launch.
        """
        launched: list[Instance] = []
        try:
            for _ in range(count):
                launched.append(self._launch_one(specification, group))
        except ApiError:
            for instance in launched:
                self._forget(instance)
                if instance.capacity_reservation_id is None:
                    self._pools.release(specification.market, specification.instance_type, specification.zone)
            raise
        self._record.join_reservation([instance.id for instance in launched])
        for instance in launched:
            instance.reservation_id = launched[0].reservation_id
            instance.launched_by = by
            with self._lock:
                self._instances[instance.id] = instance
            shown = instance.as_json()
            self._records.append(
                "instance_launched", instance_id=instance.id, instance_type=shown["type"], image=specification.image_id,
                **{name: shown[name] for name in ("market", "zone", "subnet", "private_address", "group")},
            )  # fmt: skip
            self._announce(instance)
            self._workers.submit(self._logged, self._boot, instance)
        return launched

    def terminate(self, instance_ids: Sequence[str], reason: Reason = USER_INITIATED, *, at_once: bool = False) -> None:
        """Start terminating instances, skipping those already shutting down. `at_once` skips the grace period.

        Raises:
            ApiError: An instance does not exist. No instance is terminated in this case.
        """
        for instance in [self.get(instance_id) for instance_id in instance_ids]:
            if self._begin(instance, "shutting-down", reason, when_live=True):
                grace = 0.0 if at_once else SHUTDOWN_GRACE_SECONDS
                self._workers.submit(self._logged, self._end, instance, grace)

    def shut_down_from_inside(self, instance_id: str) -> None:
        """Handle a `shutdown` command on the machine according to the instance's shutdown behavior."""
        instance = self.get(instance_id)
        if self._record.shutdown_behavior(instance_id) == "terminate" or instance.market == "spot":
            self.terminate([instance_id], INSTANCE_INITIATED)
        elif instance.state == "running" and self._begin(instance, "stopping", INSTANCE_INITIATED, when_live=True):
            self._workers.submit(self._logged, self._stop, instance)

    def leave_group(self, instance_id: str, group_tag: str) -> None:
        """Record that an instance left its Auto Scaling group, and remove the group's tag."""
        self.get(instance_id).group = None
        self._record.remove_tags(instance_id, [group_tag])

    def close(self) -> None:
        """Power off all machines and stop all threads."""
        endings: list[Future[None]] = []
        for instance in self.all():
            if instance.state != "terminated":
                reason = Reason("Server.ScheduledStop", "Server.ScheduledStop: the embedded cloud was closed")
                self._begin(instance, "shutting-down", reason, when_live=True)
                endings.append(self._workers.submit(self._end, instance, 1.0))
        for ending in endings:
            ending.result()
        self._workers.shutdown(wait=True)

    def _launch_one(self, specification: LaunchSpecification, group: str | None) -> Instance:
        token = secrets.token_hex(8)
        reservation_id = self._reservations.take(self._demand(specification), token)
        pool = specification.market, specification.instance_type, specification.zone
        if reservation_id is None:
            self._pools.take(*pool, group)
        try:
            instance = self._recorded(specification, group)
        except ApiError:
            self._reservations.release(token)
            if reservation_id is None:
                self._pools.release(*pool)
            raise
        instance.capacity_reservation_id = reservation_id
        self._reservations.assign(token, instance.id)
        return instance

    def _demand(self, specification: LaunchSpecification) -> Demand:
        purchase, group = specification.purchase, specification.placement_group
        return Demand(
            specification.instance_type, specification.zone, purchase.tenancy,
            None if group is None else self._placement.arn(group),
            purchase.lifecycle, purchase.preference, purchase.reservation_id, purchase.reservation_group_arn,
        )  # fmt: skip

    def _recorded(self, specification: LaunchSpecification, group: str | None) -> Instance:
        """Record the instance in moto, with its address and its position in the placement group."""
        subnet_id = specification.subnet_id
        try:
            address = self._addresses.take(subnet_id, specification.subnet_cidr, specification.private_address)
        except AddressesExhausted as error:
            raise ApiError("InsufficientFreeAddressesInSubnet", str(error)) from error
        try:
            answer = self._clients.direct("ec2").run_instances(**specification.run_parameters(address))
        except ClientError as error:
            self._addresses.release(subnet_id, address)
            raise as_api_error(error) from error
        described = answer["Instances"][0]
        instance = Instance(
            id=described["InstanceId"],
            specification=specification,
            private_address=address,
            machine=self._machine(described["InstanceId"]),
            mac=described["NetworkInterfaces"][0]["MacAddress"],
            reservation_id=answer["ReservationId"],
            group=group,
            spot_request_id=f"sir-{secrets.token_hex(4)}" if specification.market == "spot" else None,
            launched_unix_seconds=self._clock(),
            metadata_options=specification.metadata_options,
        )
        self._record.set_state(instance.id, "pending")
        self._record.complete(
            instance.id,
            tags=specification.instance_tags,
            placement_group=specification.placement_group,
            spot_request_id=instance.spot_request_id,
            security_group_ids=specification.security_group_ids,
            is_monitored=specification.is_monitored,
            is_protected=bool(specification.passed_on.get("DisableApiTermination")),
            launched_unix_seconds=instance.launched_unix_seconds,
        )
        if specification.placement_group is not None:
            try:
                instance.partition = self._placement.admit(
                    specification.placement_group, instance.id, specification.zone, specification.purchase.partition
                )
            except ApiError:
                self._forget(instance)
                raise
        return instance

    def _machine(self, instance_id: str) -> Machine:
        directory = self._state_directory / "instances" / instance_id
        return Machine(
            directory,
            instance_id,
            endpoint_url=self._clients.endpoint_url,
            state_directory=self._state_directory,
            power_token=self._clients.power_token(instance_id),
        )

    def _forget(self, instance: Instance) -> None:
        """Remove a failed launch's records."""
        self._record.terminate(instance.id)
        self._reservations.release(instance.id)
        self._placement.leave(instance.id)
        self._addresses.release(instance.specification.subnet_id, instance.private_address)

    def _has_keys(self, instance: Instance) -> bool:
        volumes = [one.get("Ebs") or {} for one in instance.specification.block_device_mappings]
        keys = {volume["KmsKeyId"] for volume in volumes if volume.get("KmsKeyId")}
        by = instance.launched_by
        return by is None or all(self._may_encrypt(by, key) for key in keys)

    def _boot(self, instance: Instance) -> None:
        if not self._has_keys(instance):
            self.terminate([instance.id], INVALID_KEY)
            return
        machine = instance.machine
        machine.on_crash = lambda: self.terminate([instance.id], INTERNAL_ERROR)
        try:
            machine.make(instance.specification.user_data)
            machine.metadata_url = self._servers.open(instance)
            with self._lock:
                if instance.state != "pending":
                    self._servers.close_one(instance.id)
                    return
                machine.boot()
                self._move(instance, "running", None)
        except (OSError, ProcessTreeError):
            _logger.exception("%s: boot failed", instance.id)
            self.terminate([instance.id], INTERNAL_ERROR)
            return
        self._announce(instance)

    def _end(self, instance: Instance, grace_seconds: float) -> None:
        instance.machine.power_off(grace_seconds)
        self._servers.close_one(instance.id)
        with self._lock:
            if instance.state == "terminated":
                return
            instance.ended_unix_seconds = self._clock()
            self._record.terminate(instance.id)
            self._move(instance, "terminated", instance.reason)
        self._placement.leave(instance.id)
        self._reservations.release(instance.id)
        self._addresses.release(instance.specification.subnet_id, instance.private_address)
        assert instance.reason is not None
        shown = instance.as_json()
        self._records.append(
            "instance_ended", instance_id=instance.id, instance_type=shown["type"], reason=instance.reason.code,
            message=instance.reason.message,
            **{name: shown[name] for name in ("market", "zone", "group", "launched_unix_seconds")},
        )  # fmt: skip
        self._announce(instance)

    def _stop(self, instance: Instance) -> None:
        instance.machine.power_off(SHUTDOWN_GRACE_SECONDS)
        self._servers.close_one(instance.id)
        with self._lock:
            if instance.state != "stopping":
                return
            self._move(instance, "stopped", instance.reason)
        self._announce(instance)

    def _begin(self, instance: Instance, state: State, reason: Reason, *, when_live: bool) -> bool:
        with self._lock:
            if when_live and not instance.is_live:
                return False
            self._move(instance, state, reason)
        self._announce(instance)
        return True

    def _move(self, instance: Instance, state: State, reason: Reason | None) -> None:
        instance.state = state
        instance.reason = reason
        self._record.set_state(instance.id, state, reason.code if reason else "", reason.message if reason else "")

    def _announce(self, instance: Instance) -> None:
        state = instance.state
        self._bus.publish(
            "aws.ec2", "EC2 Instance State-change Notification", {"instance-id": instance.id, "state": state},
            [f"arn:aws:ec2:{self._clients.region}:{self._clients.account}:instance/{instance.id}"],
        )  # fmt: skip
        for listener in self._listeners:
            listener(instance)

    def _logged(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run a thread pool task and log its exception, which an unread future would discard."""
        try:
            work(*arguments)
        except Exception:  # noqa: BLE001 - top level of a thread
            _logger.exception("%s failed for %s", work.__name__, arguments[0].id)
