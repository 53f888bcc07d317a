"""Placement groups: implements API operations missing from moto, and admits instances to groups."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localcloud.api import ApiError, Call
from localcloud.compute.describe import matches
from localcloud.compute.launch.moto_record import MotoRecord

_STRATEGIES = ("cluster", "spread", "partition")
_SPREAD_INSTANCES_PER_ZONE = 7  # docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html, 2026-11


@dataclass(frozen=True)
class PlacementGroup:
    """A placement group. `partitions` is 0 unless the strategy is "partition"."""

    group_id: str
    name: str
    strategy: str
    partitions: int
    spread_level: str | None
    arn: str


class PlacementGroups:
    """The account's placement groups and their instances."""

    def __init__(self, record: MotoRecord) -> None:
        self._record = record
        self._lock = threading.Lock()
        self._groups: dict[str, PlacementGroup] = {}
        self._members: dict[str, dict[str, str]] = {}
        self._partitions: dict[str, int] = {}

    def admit(self, name: str, instance_id: str, zone: str, partition: int | None = None) -> int | None:
        """Place an instance in a group. Return its partition, or None if the group has no partitions.

        Raises:
            ApiError: The group does not exist, or its strategy does not allow the instance in this zone.
        """
        with self._lock:
            group = self._by_name(name)
            members = self._members[name]
            zones = set(members.values())
            if group.strategy == "cluster" and zones and zones != {zone}:
                raise ApiError(
                    "InvalidPlacementGroup.InUse",
                    f"Placement group '{name}' has strategy cluster and instances in {', '.join(sorted(zones))}; "
                    f"an instance in {zone} cannot be placed in it.",
                )
            if (
                group.strategy == "spread"
                and group.spread_level == "rack"
                and list(members.values()).count(zone) >= _SPREAD_INSTANCES_PER_ZONE
            ):
                raise ApiError(
                    "InsufficientInstanceCapacity",
                    f"Placement group '{name}' already has {_SPREAD_INSTANCES_PER_ZONE} instances in {zone}.",
                    500,
                )
            number = self._partition(group, partition, members)
            members[instance_id] = zone
            if number is not None:
                self._partitions[instance_id] = number
            return number

    def _partition(self, group: PlacementGroup, wanted: int | None, members: Mapping[str, str]) -> int | None:
        """Return the requested partition, or the partition with the fewest instances if none is requested."""
        if wanted is not None and not 1 <= wanted <= group.partitions:
            raise ApiError(
                "InvalidParameterValue",
                f"PartitionNumber {wanted} is invalid for placement group '{group.name}' with {group.partitions} "
                "partitions.",
            )
        if not group.partitions:
            return None
        used = [self._partitions.get(one, 0) for one in members]
        return wanted or min(range(1, group.partitions + 1), key=used.count)

    def check_type(self, name: str, instance_type: str, facts: Mapping[str, Any]) -> None:
        """Check that the group's strategy supports an instance type.

        Raises:
            ApiError: InvalidParameterCombination.
        """
        with self._lock:
            strategy = self._by_name(name).strategy
        if strategy not in facts["PlacementGroupInfo"]["SupportedStrategies"]:
            raise ApiError(
                "InvalidParameterCombination",
                f"{strategy.capitalize()} placement groups are not supported by the '{instance_type}' instance type. "
                "Specify a supported instance type or change the placement group strategy, and try again.",
            )

    def arn(self, name: str) -> str:
        """Return a group's ARN.

        Raises:
            ApiError: The group does not exist.
        """
        with self._lock:
            return self._by_name(name).arn

    def resolve(self, name: str | None, group_id: str | None) -> str | None:
        """Return the name of a group given by name or ID.

        Raises:
            ApiError: The group does not exist.
        """
        with self._lock:
            if group_id is not None:
                return self._by_id(group_id).name
            return None if not name else self._by_name(name).name

    def leave(self, instance_id: str) -> None:
        """Remove a terminated instance from its group."""
        with self._lock:
            for members in self._members.values():
                members.pop(instance_id, None)
            self._partitions.pop(instance_id, None)

    def create(self, call: Call) -> Mapping[str, Any]:
        """Handle CreatePlacementGroup."""
        name = call.parameters.get("GroupName", "")
        strategy = call.parameters.get("Strategy", "cluster")
        partitions = call.parameters.get("PartitionCount", 0)
        if not name:
            raise ApiError("MissingParameter", "The request must contain the parameter GroupName")
        if strategy not in _STRATEGIES:
            raise ApiError("InvalidParameterValue", f"Value ({strategy}) for parameter strategy is invalid.")
        if partitions and strategy != "partition":
            raise ApiError("InvalidParameterCombination", "PartitionCount can be used with strategy partition only")
        if not 0 <= partitions <= 7:
            raise ApiError("InvalidParameterValue", f"Value ({partitions}) for parameter partitionCount is invalid.")
        group_id = f"pg-{secrets.token_hex(9)[:17]}"
        group = PlacementGroup(
            group_id, name, strategy, partitions or (2 if strategy == "partition" else 0),
            call.parameters.get("SpreadLevel", "rack") if strategy == "spread" else None,
            f"arn:aws:ec2:{call.region}:{call.account}:placement-group/{name}",
        )  # fmt: skip
        with self._lock:
            if name in self._groups:
                raise ApiError("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists.")
            self._groups[name] = group
            self._members[name] = {}
        for specification in call.parameters.get("TagSpecifications", []):
            self._record.add_tags(group_id, {tag["Key"]: tag.get("Value", "") for tag in specification["Tags"]})
        return {"PlacementGroup": self._describe_one(group)}

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribePlacementGroups."""
        names: Sequence[str] = call.parameters.get("GroupNames", [])
        ids: Sequence[str] = call.parameters.get("GroupIds", [])
        with self._lock:
            if names or ids:
                chosen = [self._by_name(name) for name in names] + [self._by_id(group_id) for group_id in ids]
            else:
                chosen = list(self._groups.values())
        shown = [self._describe_one(group) for group in chosen]
        fields = {"group-name": "GroupName", "strategy": "Strategy", "state": "State", "group-arn": "GroupArn"}
        filters = call.parameters.get("Filters", [])
        return {"PlacementGroups": [one for one in shown if matches(filters, one, fields)]}

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Handle DeletePlacementGroup."""
        name = call.parameters.get("GroupName", "")
        with self._lock:
            group = self._by_id(name) if re.fullmatch(r"pg-[0-9a-f]{17}", name) else self._by_name(name)
            if self._members[group.name]:
                raise ApiError(
                    "InvalidPlacementGroup.InUse",
                    f"The placement group '{group.name}' is in use and may not be deleted.",
                )
            del self._groups[group.name]
            del self._members[group.name]
        self._record.forget_tags(group.group_id)
        return {}

    def _describe_one(self, group: PlacementGroup) -> dict[str, Any]:
        tags = self._record.tags(group.group_id)
        shown: dict[str, Any] = {
            "GroupName": group.name, "GroupId": group.group_id, "GroupArn": group.arn,
            "Strategy": group.strategy, "State": "available",
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        }  # fmt: skip
        if group.partitions:
            shown["PartitionCount"] = group.partitions
        if group.spread_level:
            shown["SpreadLevel"] = group.spread_level
        return shown

    def _by_name(self, name: str) -> PlacementGroup:
        if name not in self._groups:
            raise ApiError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
        return self._groups[name]

    def _by_id(self, group_id: str) -> PlacementGroup:
        for group in self._groups.values():
            if group.group_id == group_id:
                return group
        raise ApiError("InvalidPlacementGroupId.NotFound", f"The placement group id '{group_id}' does not exist.")
