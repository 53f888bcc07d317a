"""The only module that writes to moto's EC2 objects.

moto describes instances, but it does not support transitional states, spot requests or placement groups for them, and
it does not free addresses. moto's objects live in this process, so this module sets the missing attributes on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.utils import EC2_RESOURCE_TO_PREFIX

STATE_CODES: Mapping[str, int] = {
    "pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80,
}  # fmt: skip


class MotoRecord:
    """moto's EC2 backend for one account and region. `clock` returns Unix seconds."""

    def __init__(self, account: str, region: str, clock: Callable[[], float] = time.time) -> None:
        # moto rejects tags on unknown resource types.
        EC2_RESOURCE_TO_PREFIX.update({"capacity-reservation": "cr", "placement-group": "pg"})
        self._account = account
        self._region = region
        self._clock = clock

    @property
    def _backend(self) -> Any:
        return ec2_backends[self._account][self._region]

    def join_reservation(self, instance_ids: Sequence[str]) -> None:
        """Move instances that moto launched one by one into one reservation, as if a single call had launched them."""
        reservations = self._backend.reservations
        of_instance = {
            instance.id: reservation
            for reservation in list(reservations.values())
            for instance in reservation.instances
        }
        first = of_instance[instance_ids[0]]
        for launch_index, instance_id in enumerate(instance_ids[1:], start=1):
            other = of_instance[instance_id]
            for instance in other.instances:
                instance.ami_launch_index = launch_index
            first.instances.extend(other.instances)
            del reservations[other.id]

    def complete(
        self, instance_id: str, *, tags: Mapping[str, str], placement_group: str | None, spot_request_id: str | None,
        security_group_ids: Sequence[str], is_monitored: bool, is_protected: bool, launched_unix_seconds: float,
    ) -> None:  # fmt: skip
        """Set a new instance's attributes that moto's RunInstances rejects or drops, such as aws: tags."""
        instance = self._backend.get_instance(instance_id)
        instance.launch_time = datetime.fromtimestamp(launched_unix_seconds, UTC).replace(tzinfo=None)
        self.add_tags(instance_id, tags)
        instance.placement.group_name = placement_group or ""
        instance.disable_api_termination = is_protected
        instance.monitoring_state = "enabled" if is_monitored else "disabled"
        instance.security_groups = [self._backend.get_security_group_from_id(name) for name in security_group_ids]
        if spot_request_id is not None:
            instance.lifecycle = "spot"
            instance.spot_instance_request_id = spot_request_id
        for interface in instance.nics.values():
            interface.delete_on_termination = True

    def set_state(self, instance_id: str, state: str, reason_code: str = "", reason_message: str = "") -> None:
        """Set the state that DescribeInstances returns, and the reason for it."""
        instance = self._backend.get_instance(instance_id)
        instance._state.name = state
        instance._state.code = STATE_CODES[state]
        instance.state_reason.code = reason_code
        instance.state_reason.message = reason_message
        if state != "terminated" or not instance._reason:  # it keeps the time at which the shutdown began
            instance._reason = self._transition_reason(reason_code)

    def _transition_reason(self, code: str) -> str:
        """Return StateTransitionReason. It has the time only if a call to EC2's API changed the state.

        Sources (2026-11): responses of DescribeInstances such as
        https://github.com/lostsnow/devops-cli/blob/master/aws/data/sample/ec2/describe-instances.md. Responses after a
        shutdown from inside contain only "User initiated".
        """
        if code == "Client.UserInitiatedShutdown":
            return f"User initiated ({datetime.fromtimestamp(self._clock(), UTC):%Y-%m-%d %H:%M:%S} GMT)"
        return "User initiated" if code == "Client.InstanceInitiatedShutdown" else code

    def is_protected(self, instance_id: str) -> bool:
        """Return True if termination protection was enabled at launch or by ModifyInstanceAttribute."""
        return str(self._backend.get_instance(instance_id).disable_api_termination).lower() == "true"

    def shutdown_behavior(self, instance_id: str) -> str:
        """Return "stop" or "terminate", taking ModifyInstanceAttribute into account."""
        return str(self._backend.get_instance(instance_id).instance_initiated_shutdown_behavior)

    def set_shutdown_behavior(self, instance_id: str, behavior: str) -> None:
        """Set the shutdown behavior to "stop" or "terminate"."""
        self._backend.get_instance(instance_id).instance_initiated_shutdown_behavior = behavior

    def terminate(self, instance_id: str) -> None:
        """Release an instance's network interfaces, volumes and addresses."""
        instance = self._backend.get_instance(instance_id)
        addresses = set(instance._private_ips)
        subnet_id, reason = instance.subnet_id, instance._reason
        instance.terminate()
        instance._reason = reason  # moto has replaced it with one that has the time of another clock
        for subnet in self._backend.describe_subnets(subnet_ids=None):
            if subnet.id == subnet_id:
                for address in addresses:
                    subnet.del_subnet_ip(address)

    def devices(self, instance_id: str) -> list[str]:
        """Return the names of an instance's block devices, root device first."""
        instance = self._backend.get_instance(instance_id)
        root = str(instance.root_device_name)
        return [root, *sorted(str(name) for name in instance.block_device_mapping if name != root)]

    def interface_id(self, instance_id: str) -> str:
        """Return the ID of an instance's first network interface."""
        return str(next(iter(self._backend.get_instance(instance_id).nics.values())).id)

    def security_group_names(self, instance_id: str) -> list[str]:
        """Return the names of an instance's security groups."""
        return [str(group.name) for group in self._backend.get_instance(instance_id).security_groups]

    def tags(self, resource_id: str) -> dict[str, str]:
        """Return a resource's tags, or an empty dictionary if it has none."""
        return dict(self._backend.tags.get(resource_id, {}))

    def add_tags(self, resource_id: str, tags: Mapping[str, str]) -> None:
        """Tag a resource, even if it is unknown to moto. Keys can have the aws: prefix.

        Replaces the resource's tags in one step, because moto iterates over them in other threads.
        """
        self._backend.tags[resource_id] = self.tags(resource_id) | dict(tags)

    def remove_tags(self, resource_id: str, keys: Sequence[str]) -> None:
        """Remove tags from a resource. Missing keys are ignored."""
        self._backend.tags[resource_id] = {
            key: value for key, value in self.tags(resource_id).items() if key not in keys
        }

    def forget_tags(self, resource_id: str) -> None:
        """Drop a deleted resource's tags."""
        self._backend.tags.pop(resource_id, None)

    def taken_addresses(self, subnet_id: str) -> set[str]:
        """Return the private addresses of the subnet's interfaces for instances, endpoints and mount targets."""
        return {
            interface.private_ip_address
            for interface in self._backend.get_all_network_interfaces()
            if interface.subnet.id == subnet_id
        } | set(self._backend.get_subnet(subnet_id)._subnet_ips)
