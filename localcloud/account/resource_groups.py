"""Manages the members of resource groups, such as pools of capacity reservations.

moto stores the groups, their configurations and their tags, but not their members.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Call, Clients, Handler, Observer, Service

_RESERVATION_POOL = "AWS::EC2::CapacityReservationPool"


class ResourceGroups(Service):
    """Operations on group members (api.Service)."""

    name = "resource-groups"

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._members: dict[str, list[str]] = {}

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {"GroupResources": self.group}

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return the observer that handles deleted groups."""
        return {(self.name, "DeleteGroup"): self._forget}

    def members(self, group_arn: str) -> Sequence[str]:
        """Return the ARNs of a group's members, or an empty list for an unknown group."""
        with self._lock:
            return list(self._members.get(group_arn, []))

    def group(self, call: Call) -> Mapping[str, Any]:
        """Handle GroupResources."""
        arn, kinds = self._found(call)
        done, failed = [], []
        for resource in call.parameters["ResourceArns"]:
            if _RESERVATION_POOL in kinds and ":capacity-reservation/" not in resource:
                message = "Resource type not supported for group"
                failed.append(
                    {"ResourceArn": resource, "ErrorCode": "RESOURCE_TYPE_NOT_SUPPORTED", "ErrorMessage": message}
                )
                continue
            done.append(resource)
        with self._lock:
            known = self._members.setdefault(arn, [])
            known += [one for one in done if one not in known]
        return {"Succeeded": done, "Failed": failed, "Pending": []}

    def _found(self, call: Call) -> tuple[str, set[str]]:
        """Return the ARN and configuration types of the group named in a call."""
        named = call.parameters.get("Group") or call.parameters.get("GroupName")
        groups = self._clients.direct(self.name, region=call.region)
        try:
            found = groups.get_group(GroupName=str(named).rpartition("/")[2])["Group"]
            configuration = groups.get_group_configuration(Group=found["Name"])["GroupConfiguration"]
        except ClientError as error:
            raise ApiError("NotFoundException", f"Cannot find group for request {named}", 404) from error
        return str(found["GroupArn"]), {str(one["Type"]) for one in configuration.get("Configuration") or []}

    def _forget(self, call: Call, answer: Mapping[str, Any]) -> None:
        named = str(call.parameters.get("Group") or call.parameters.get("GroupName")).rpartition("/")[2]
        with self._lock:
            self._members = {arn: value for arn, value in self._members.items() if arn.rpartition("/")[2] != named}
