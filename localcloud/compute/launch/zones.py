"""Names and IDs of the availability zones in the account's region."""

from __future__ import annotations

from collections.abc import Mapping

from localcloud.api import ApiError, Clients


class Zones:
    """Looks up zone names and IDs, and caches them."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._ids: dict[str, str] = {}

    def ids(self) -> Mapping[str, str]:
        """Return the zone IDs, keyed by zone name."""
        if not self._ids:
            answer = self._clients.direct("ec2").describe_availability_zones()
            self._ids = {one["ZoneName"]: one["ZoneId"] for one in answer["AvailabilityZones"]}
        return self._ids

    def id_of(self, name: str) -> str:
        """Return a zone's ID.

        Raises:
            ApiError: InvalidParameterValue.
        """
        return self.ids()[self.checked(name)]

    def name_of(self, zone_id: str) -> str:
        """Return a zone's name.

        Raises:
            ApiError: InvalidParameterValue.
        """
        for name, one in self.ids().items():
            if one == zone_id:
                return name
        raise ApiError("InvalidParameterValue", f"Invalid availability zone id: [{zone_id}]")

    def checked(self, name: str) -> str:
        """Return `name` if the zone exists.

        Raises:
            ApiError: InvalidParameterValue.
        """
        if name not in self.ids():
            raise ApiError("InvalidParameterValue", f"Invalid availability zone: [{name}]")
        return name
