"""The availability zones of the account's region: names and ids."""

from __future__ import annotations

from collections.abc import Mapping

from localcloud.api import ApiError, Clients


class Zones:
    """Looks the zones up once."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._ids: dict[str, str] = {}

    def ids(self) -> Mapping[str, str]:
        """Return the zone ids by name."""
        if not self._ids:
            answer = self._clients.direct("ec2").describe_availability_zones()
            self._ids = {one["ZoneName"]: one["ZoneId"] for one in answer["AvailabilityZones"]}
        return self._ids

    def id_of(self, name: str) -> str:
        """Return the id of a zone by its name."""
        return self.ids()[self.checked(name)]

    def name_of(self, zone_id: str) -> str:
        """Return the name of a zone by its id.

        Raises:
            ApiError: InvalidParameterValue.
        """
        for name, one in self.ids().items():
            if one == zone_id:
                return name
        raise ApiError("InvalidParameterValue", f"Invalid availability zone id: [{zone_id}]")

    def checked(self, name: str) -> str:
        """Return the name when there is such a zone.

        Raises:
            ApiError: InvalidParameterValue.
        """
        if name not in self.ids():
            raise ApiError("InvalidParameterValue", f"Invalid availability zone: [{name}]")
        return name
