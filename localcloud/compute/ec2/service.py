"""EC2 operations on instances and placement groups. moto handles all EC2 operations that have no handler here.

`Ec2Service` also includes other modules' handlers, such as the handlers for fleets.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from localcloud.api import ApiError, Call, Clients, Handler, Observer, Service
from localcloud.compute.describe import matches, timestamp
from localcloud.compute.launch.moto_record import STATE_CODES, MotoRecord
from localcloud.compute.launch.network_cards import with_cards
from localcloud.compute.launch.placement import PlacementGroups
from localcloud.compute.launch.resolver import LaunchResolver
from localcloud.compute.machines.instance import Instance
from localcloud.compute.machines.inventory import Inventory

CONSOLE_BYTES = 64 * 1024
"""Maximum size of GetConsoleOutput's output.
Source: docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html, 2026-11."""

_OWN_FILTERS = {
    "instance-lifecycle": "InstanceLifecycle",
    "placement-group-name": "Placement.GroupName",
    "spot-instance-request-id": "SpotInstanceRequestId",
    "metadata-options.http-tokens": "MetadataOptions.HttpTokens",
    "private-dns-name": "PrivateDnsName",
    "capacity-reservation-id": "CapacityReservationId",
    "placement-partition-number": "Placement.PartitionNumber",
    "tenancy": "Placement.Tenancy",
}
_REFUSED = {
    "RequestSpotInstances": "use RunInstances with InstanceMarketOptions",
    "StopInstances": "terminate the instance",
    "StartInstances": "launch another instance",
    "RebootInstances": "launch another instance",
}


class Ec2Service(Service):
    """api.Service for the emulated part of EC2."""

    name = "ec2"

    def __init__(
        self,
        clients: Clients,
        inventory: Inventory,
        resolver: LaunchResolver,
        placement: PlacementGroups,
        record: MotoRecord,
        *handlers: Mapping[str, Handler],
    ) -> None:
        self._handlers = {operation: handler for part in handlers for operation, handler in part.items()}
        self._clients = clients
        self._inventory = inventory
        self._resolver = resolver
        self._placement = placement
        self._record = record

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return (
            {
                "RunInstances": self.run_instances,
                "TerminateInstances": self.terminate_instances,
                "ModifyInstanceAttribute": self.modify_instance_attribute,
                "GetConsoleOutput": self.get_console_output,
                "DescribeInstances": self.describe_instances,
                "DescribeSpotInstanceRequests": self.describe_spot_instance_requests,
                "CreatePlacementGroup": self._placement.create,
                "DescribePlacementGroups": self._placement.describe,
                "DeletePlacementGroup": self._placement.delete,
            }
            | self._handlers
            | dict.fromkeys(_REFUSED, _refuse)
        )

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return the observers for calls that moto handles."""
        return {("ec2", "ModifyInstanceMetadataOptions"): self._follow_metadata_options}

    def run_instances(self, call: Call) -> Mapping[str, Any]:
        """Handle RunInstances: launch as many instances as possible between MinCount and MaxCount."""
        parameters = call.parameters
        if call.region != self._clients.region:
            raise ApiError("UnsupportedOperation", f"The embedded cloud only runs instances in {self._clients.region}.")
        least, most = int(parameters.get("MinCount", 1)), int(parameters.get("MaxCount", 1))
        if not 1 <= least <= most:
            raise ApiError(
                "InvalidParameterValue", f"MinCount {least} and MaxCount {most}: must be 1 <= MinCount <= MaxCount"
            )
        specification = self._resolver.resolve(parameters)
        if parameters.get("DryRun"):
            raise ApiError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
        count = most
        while True:
            try:
                launched = self._inventory.launch(specification, count)
                break
            except ApiError as error:
                if error.code != "InsufficientInstanceCapacity" or count == least:
                    raise
                count -= 1
        answer = self._describe({"InstanceIds": [instance.id for instance in launched]})
        reservation: Mapping[str, Any] = answer["Reservations"][0]
        for shown in reservation["Instances"]:  # the state at launch, even if an instance has already started
            shown["State"] = {"Code": 0, "Name": "pending"}
        return reservation

    def terminate_instances(self, call: Call) -> Mapping[str, Any]:
        """Handle TerminateInstances."""
        instances = [self._inventory.get(instance_id) for instance_id in call.parameters.get("InstanceIds", [])]
        if call.parameters.get("DryRun"):
            raise ApiError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
        before = {instance.id: instance.state for instance in instances}
        for instance in instances:
            if self._record.is_protected(instance.id):
                raise ApiError(
                    "OperationNotPermitted",
                    f"The instance '{instance.id}' may not be terminated. Modify its 'disableApiTermination' instance "
                    "attribute and try again.",
                )
        self._inventory.terminate(list(before))
        return {"TerminatingInstances": [_change(one, before[one.id]) for one in instances]}

    def modify_instance_attribute(self, call: Call) -> Mapping[str, Any]:
        """Handle ModifyInstanceAttribute: set the shutdown behavior and pass all other attributes to moto."""
        parameters = call.parameters
        if "InstanceInitiatedShutdownBehavior" in parameters:
            instance = self._inventory.get(parameters["InstanceId"])
            behavior = parameters["InstanceInitiatedShutdownBehavior"].get("Value")
            if behavior not in ("stop", "terminate"):
                raise ApiError("InvalidParameterValue", f"Invalid value '{behavior}' for the shutdown behavior")
            self._record.set_shutdown_behavior(instance.id, behavior)
            return {}
        self._clients.direct("ec2").modify_instance_attribute(**parameters)
        return {}

    def get_console_output(self, call: Call) -> Mapping[str, Any]:
        """Handle GetConsoleOutput: return the end of the machine's console output."""
        instance = self._inventory.get(call.parameters["InstanceId"])
        printed = instance.machine.console(CONSOLE_BYTES)
        return {
            "InstanceId": instance.id,
            "Output": base64.b64encode(printed).decode(),
            "Timestamp": datetime.now(UTC),
        }

    def describe_instances(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeInstances: apply additional filters to moto's response."""
        return self._describe(call.parameters)

    def describe_spot_instance_requests(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeSpotInstanceRequests: return the one-time requests that RunInstances created."""
        wanted = call.parameters.get("SpotInstanceRequestIds", [])
        shown = [self._spot_request(one) for one in self._inventory.all() if one.spot_request_id]
        if missing := set(wanted) - {one["SpotInstanceRequestId"] for one in shown}:
            raise ApiError(
                "InvalidSpotInstanceRequestID.NotFound",
                f"The spot instance request ID '{min(missing)}' does not exist",
            )
        fields = {
            "spot-instance-request-id": "SpotInstanceRequestId", "state": "State", "status-code": "Status.Code",
            "instance-id": "InstanceId", "launched-availability-zone": "LaunchedAvailabilityZone", "type": "Type",
        }  # fmt: skip
        filters = call.parameters.get("Filters", [])
        chosen = [one for one in shown if not wanted or one["SpotInstanceRequestId"] in wanted]
        return {"SpotInstanceRequests": [one for one in chosen if matches(filters, one, fields)]}

    def _describe(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        filters = parameters.get("Filters", [])
        own = [one for one in filters if one["Name"] in _OWN_FILTERS]
        passed = {name: value for name, value in parameters.items() if name != "Filters"}
        if rest := [one for one in filters if one["Name"] not in _OWN_FILTERS]:
            passed["Filters"] = rest
        answer = self._clients.direct("ec2").describe_instances(**passed)
        reservations = []
        for reservation in answer["Reservations"]:
            shown_instances = [self._overlaid(one) for one in reservation["Instances"]]
            kept = [one for one in shown_instances if matches(own, one, _OWN_FILTERS)]
            if kept:
                reservations.append(reservation | {"Instances": kept})
        shown = {"Reservations": reservations}
        return shown | ({"NextToken": answer["NextToken"]} if answer.get("NextToken") else {})

    def _overlaid(self, shown: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an instance description with the attributes that moto does not provide."""
        instance = self._inventory.get(shown["InstanceId"])
        purchase = instance.specification.purchase
        placement = dict(shown.get("Placement", {})) | {"Tenancy": purchase.tenancy}
        if instance.partition is not None:
            placement["PartitionNumber"] = instance.partition
        reservation: dict[str, Any] = {"CapacityReservationPreference": purchase.preference}
        targets = {
            "CapacityReservationId": purchase.reservation_id,
            "CapacityReservationResourceGroupArn": purchase.reservation_group_arn,
        }
        if target := {name: value for name, value in targets.items() if value}:
            reservation = {"CapacityReservationTarget": target}
        overlay: dict[str, Any] = {
            "Placement": placement,
            "CapacityReservationSpecification": reservation,
            "MaintenanceOptions": {"AutoRecovery": "default"} | dict(purchase.maintenance or {}),
            "NetworkInterfaces": with_cards(
                shown.get("NetworkInterfaces", []), instance.specification.network_interfaces
            ),
        }
        if instance.capacity_reservation_id is not None:
            overlay["CapacityReservationId"] = instance.capacity_reservation_id
        if purchase.lifecycle != "on-demand":
            overlay["InstanceLifecycle"] = purchase.lifecycle
        return {**shown, **overlay}

    def _spot_request(self, instance: Instance) -> dict[str, Any]:
        is_over = not instance.is_live
        return {
            "SpotInstanceRequestId": instance.spot_request_id, "InstanceId": instance.id, "Type": "one-time",
            "State": "closed" if is_over else "active",
            "Status": {"Code": "instance-terminated-no-capacity" if instance.reclaim_unix_seconds and is_over
                       else "instance-terminated-by-user" if is_over else "fulfilled"},
            "LaunchedAvailabilityZone": instance.zone, "InstanceInterruptionBehavior": "terminate",
            "ProductDescription": "Linux/UNIX",
            "CreateTime": timestamp(instance.launched_unix_seconds), "Tags": [],
            **({"SpotPrice": instance.specification.spot_max_price} if instance.specification.spot_max_price else {}),
        }  # fmt: skip

    def _follow_metadata_options(self, call: Call, answer: Mapping[str, Any]) -> None:
        instance = self._inventory.get(call.parameters["InstanceId"])
        changed = {name: call.parameters[name] for name in instance.metadata_options if name in call.parameters}
        instance.metadata_options = dict(instance.metadata_options) | changed


def _change(instance: Instance, before: str) -> dict[str, Any]:
    return {
        "InstanceId": instance.id,
        "CurrentState": {"Code": STATE_CODES[instance.state], "Name": instance.state},
        "PreviousState": {"Code": STATE_CODES[before], "Name": before},
    }


def _refuse(call: Call) -> Mapping[str, Any]:
    raise ApiError(
        "UnsupportedOperation", f"{call.operation}: not emulated by the embedded cloud; {_REFUSED[call.operation]}"
    )
