"""The current spot prices of the candidate subnets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from ..ledger.sources import spot_prices
from ..situation import Settings
from ..zone_choice import chooses


class Prices(Protocol):
    """Reads the current prices."""

    def now(self, now_unix_seconds: float) -> tuple[Mapping[str, float], str | None]:
        """Return the price of one node in each subnet, in USD per hour, and the reason why prices are missing."""


class SpotPrices:
    """The lowest spot price of the instance types in each subnet's zone. `client` creates the client for a service."""

    def __init__(self, settings: Settings, client: Callable[[str], Any]) -> None:
        self._settings = settings
        self._client = client

    def now(self, now_unix_seconds: float) -> tuple[Mapping[str, float], str | None]:
        """Return the current prices. AWS is called only if a decision needs them."""
        settings = self._settings
        ranks_by_price = chooses(settings) and settings.choose == "cost"
        if not ranks_by_price and settings.deadline is None:
            return {}, None
        pools = {
            (kind, place.zone): now_unix_seconds for place in settings.places for kind in place.instance_type.split(",")
        }
        try:
            found = spot_prices(self._client("ec2"), pools, now_unix_seconds)
        except (ClientError, BotoCoreError) as error:
            return {}, f"cannot read the spot prices, so the places are ranked without them: {error!r}"
        lowest: dict[str, float] = {}
        for (_, zone), changes in found.items():
            lowest[zone] = min(changes[-1][1], lowest.get(zone, changes[-1][1]))
        pairs = zip(settings.subnets, settings.places, strict=True)
        return {subnet: lowest[place.zone] for subnet, place in pairs if place.zone in lowest}, None
