"""The part of Resource Groups that moto lacks: groups whose members are named, such as pools of reservations.

Not here: the groups themselves, their configurations and tags, which are moto's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Call, Clients, Handler, Observer

_RESERVATION_POOL = "AWS::EC2::CapacityReservationPool"


class ResourceGroups:
    """api.Service for the membership of groups."""

    name = "resource-groups"

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._members: dict[str, list[str]] = {}

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
        return {
            "GroupResources": self.group,
            "UngroupResources": self.ungroup,
            "ListGroupResources": self.list,
        }

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return who forgets the members of a group that is gone."""
        return {(self.name, "DeleteGroup"): self._forget}

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Answer nothing."""
        return 404, b""

    def close(self) -> None:
        """Do nothing."""

    def members(self, group_arn: str) -> Sequence[str]:
        """Return the ARNs of a group's members, none when there is no such group."""
        with self._lock:
            return list(self._members.get(group_arn, []))

    def group(self, call: Call) -> Mapping[str, Any]:
        """Answer GroupResources."""
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

    def ungroup(self, call: Call) -> Mapping[str, Any]:
        """Answer UngroupResources."""
        arn, _ = self._found(call)
        leaving = call.parameters["ResourceArns"]
        with self._lock:
            self._members[arn] = [one for one in self._members.get(arn, []) if one not in leaving]
        return {"Succeeded": list(leaving), "Failed": [], "Pending": []}

    def list(self, call: Call) -> Mapping[str, Any]:
        """Answer ListGroupResources."""
        arn, _ = self._found(call)
        identifiers = [
            {"ResourceArn": one, "ResourceType": "AWS::EC2::CapacityReservation"}
            if ":capacity-reservation/" in one
            else {"ResourceArn": one}
            for one in self.members(arn)
        ]
        return {
            "ResourceIdentifiers": identifiers,
            "Resources": [{"Identifier": one} for one in identifiers],
            "QueryErrors": [],
        }

    def _found(self, call: Call) -> tuple[str, set[str]]:
        """Return the ARN of the group that a call names, and the types of its configuration."""
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
