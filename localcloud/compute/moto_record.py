"""The one seam to moto's EC2 objects: instances are described by moto, and what it cannot know is written here.

moto has no transitional states, no spot requests, no placement groups on instances, and frees no addresses; its objects
live in this process, so those attributes are set on them. Not here: what the instances do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from moto.ec2.models import ec2_backends
from moto.ec2.utils import EC2_RESOURCE_TO_PREFIX

from localcloud.compute.network_cards import numbered

if TYPE_CHECKING:
    from localcloud.compute.launch import LaunchSpecification

STATE_CODES: Mapping[str, int] = {
    "pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80,
}  # fmt: skip


class MotoRecord:
    """moto's EC2 record of one account and region."""

    def __init__(self, account: str, region: str) -> None:
        # moto refuses to tag resources whose kind it does not know.
        EC2_RESOURCE_TO_PREFIX.update({"capacity-reservation": "cr", "placement-group": "pg"})
        self._account = account
        self._region = region

    @property
    def _backend(self) -> Any:
        return ec2_backends[self._account][self._region]

    def join_reservation(self, instance_ids: Sequence[str]) -> None:
        """Put instances that moto launched one by one into the first one's reservation, as one RunInstances does."""
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
        security_group_ids: Sequence[str], is_monitored: bool, is_protected: bool,
    ) -> None:  # fmt: skip
        """Add to a new instance what RunInstances of moto refuses or drops; tags may have the aws: prefix."""
        instance = self._backend.get_instance(instance_id)
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
        """Set the state that DescribeInstances shows, and why."""
        instance = self._backend.get_instance(instance_id)
        instance._state.name = state
        instance._state.code = STATE_CODES[state]
        instance.state_reason.code = reason_code
        instance.state_reason.message = reason_message
        if reason_code:
            stamp = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S GMT")
            words = "User initiated" if reason_code.startswith("Client.User") else reason_code
            instance._reason = f"{words} ({stamp})"
        else:
            instance._reason = ""

    def is_protected(self, instance_id: str) -> bool:
        """Tell whether the API may not terminate the instance, after ModifyInstanceAttribute too."""
        return str(self._backend.get_instance(instance_id).disable_api_termination).lower() == "true"

    def shutdown_behavior(self, instance_id: str) -> str:
        """Return "stop" or "terminate", after ModifyInstanceAttribute too."""
        return str(self._backend.get_instance(instance_id).instance_initiated_shutdown_behavior)

    def set_shutdown_behavior(self, instance_id: str, behavior: str) -> None:
        """Set it to "stop" or "terminate"."""
        self._backend.get_instance(instance_id).instance_initiated_shutdown_behavior = behavior

    def terminate(self, instance_id: str) -> None:
        """Give back the interfaces, volumes, and addresses of an instance."""
        instance = self._backend.get_instance(instance_id)
        addresses = set(instance._private_ips)
        subnet_id = instance.subnet_id
        instance.terminate()
        for subnet in self._backend.describe_subnets(subnet_ids=None):
            if subnet.id == subnet_id:
                for address in addresses:
                    subnet.del_subnet_ip(address)

    def tags(self, resource_id: str) -> dict[str, str]:
        """Return the tags of any resource, none when it was never tagged."""
        return dict(self._backend.tags.get(resource_id, {}))

    def add_tags(self, resource_id: str, tags: Mapping[str, str]) -> None:
        """Tag a resource, also one that moto does not hold, also with keys of the aws: prefix.

        The whole set is replaced in one step, because moto iterates over it in other threads.
        """
        self._backend.tags[resource_id] = self.tags(resource_id) | dict(tags)

    def remove_tags(self, resource_id: str, keys: Sequence[str]) -> None:
        """Take tags from a resource; keys that it does not have are no error."""
        self._backend.tags[resource_id] = {
            key: value for key, value in self.tags(resource_id).items() if key not in keys
        }

    def forget_tags(self, resource_id: str) -> None:
        """Drop the tags of a resource that is gone."""
        self._backend.tags.pop(resource_id, None)

    def taken_addresses(self, subnet_id: str) -> set[str]:
        """Return the private addresses of the subnet's interfaces (instances, endpoints, mount targets)."""
        return {
            interface.private_ip_address
            for interface in self._backend.get_all_network_interfaces()
            if interface.subnet.id == subnet_id
        } | set(self._backend.get_subnet(subnet_id)._subnet_ips)


def run_parameters(specification: LaunchSpecification, address: str) -> dict[str, Any]:
    """Return the RunInstances call that makes moto record the instance."""
    parameters: dict[str, Any] = {
        "ImageId": specification.image_id, "InstanceType": specification.instance_type, "MinCount": 1, "MaxCount": 1,
        "InstanceInitiatedShutdownBehavior": specification.shutdown_behavior,
        "MetadataOptions": dict(specification.metadata_options), **specification.passed_on,
    }  # fmt: skip
    if specification.user_data:
        parameters["UserData"] = specification.user_data  # boto3 encodes it in base64
    if specification.profile is not None:
        parameters["IamInstanceProfile"] = {"Name": specification.profile.name}
    if specification.block_device_mappings:
        parameters["BlockDeviceMappings"] = list(specification.block_device_mappings)
    if specification.volume_tags:
        tags = [{"Key": key, "Value": value} for key, value in specification.volume_tags.items()]
        parameters["TagSpecifications"] = [{"ResourceType": "volume", "Tags": tags}]
    if specification.network_interfaces:
        parameters["NetworkInterfaces"] = interfaces = numbered(specification.network_interfaces)
        for interface in interfaces:
            if interface.get("DeviceIndex", 0) == 0 and not interface.get("NetworkInterfaceId"):
                interface["PrivateIpAddress"] = address
                break
    else:
        parameters |= {"SubnetId": specification.subnet_id, "PrivateIpAddress": address}
        if specification.security_group_ids:
            parameters["SecurityGroupIds"] = list(specification.security_group_ids)
    return parameters
