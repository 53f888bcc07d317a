"""Updates the ledger in each control step, and returns the current run's costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from ..fleet_back_ends import BACK_ENDS
from ..fleet_clients import FleetIdentity
from ..spending import Spending
from . import documents, sources
from .books import Books, changed_hours, look, priced, settled, unpriced_hours
from .machines import HOUR, OnDemandPrices

OVERLAP_SECONDS = 3 * HOUR
"""Overlap between the records that consecutive updates read, because the fleet records some events late."""
HISTORY_SECONDS = 47 * HOUR
"""Maximum age of the records to read. Fleets keep them for 48 hours."""
IDLE_SECONDS = 15 * 60.0
"""The longest time between two writes of the state while nothing changes."""


class LedgerTaken(Exception):
    """Another invocation has written the ledger's state since this one read it."""


class Keeper:
    """Keeps the ledger of one deployment. `client` creates the boto3 client for a service."""

    def __init__(
        self,
        deployment: str,
        fleet: FleetIdentity,
        prices: OnDemandPrices,
        *,
        s3: Any,
        bucket: str,
        client: Callable[[str], Any],
    ) -> None:
        self._deployment = deployment
        self._state_key = documents.state_key(deployment)
        self._fleet = fleet
        self._prices = prices
        self._s3 = s3
        self._bucket = bucket
        self._client = client

    def look(self, events: Iterable[Mapping[str, Any]], run: str, now_unix_seconds: float) -> Spending:
        """Query all sources, write the changed hours and then the state, and return the run's spending.

        Raises:
            LedgerTaken: Another invocation wrote the state during this update. The next control step repeats it.
            InvalidRecord: The stored state is invalid, so past costs are unknown. Nothing was written.
            botocore.exceptions.ClientError: AWS rejected a call.
        """
        before, etag = self._load()
        after = self._seen(before, events, run, now_unix_seconds)
        for hour, rows in changed_hours(before, after, self._prices, now_unix_seconds):
            body = documents.hour_to_bytes(hour, rows, now_unix_seconds)
            self._s3.put_object(Bucket=self._bucket, Key=documents.hour_key(self._deployment, hour), Body=body)
        if self._is_worth_writing(before, after):
            self._save(settled(after, self._prices), etag)
        spent = after.totals(self._prices, now_unix_seconds).get(run)
        return Spending(
            usd=0.0 if spent is None else spent.usd,
            on_demand_usd=0.0 if spent is None else spent.on_demand_usd,
            usd_per_hour=after.usd_per_hour(self._prices, now_unix_seconds),
            run_hours=after.run_seconds.get(run, 0.0) / HOUR,
            unpriced_hours=0.0 if spent is None else spent.unpriced_seconds / HOUR,
        )

    def _seen(self, before: Books, events: Iterable[Mapping[str, Any]], run: str, now: float) -> Books:
        ec2 = self._client("ec2")
        looked = before.looked_unix_seconds
        since = max(now - HISTORY_SECONDS, (now if looked is None else looked) - OVERLAP_SECONDS)
        fleet = self._client(BACK_ENDS[self._fleet.backend].service)
        recorded = sources.reported(self._fleet, fleet, since)
        tracked = {machine.instance_id for machine in before.running(now)}
        launched = {seen.instance_id for seen in recorded if seen.launched_unix_seconds is not None}
        known = {machine.instance_id for machine in before.machines}
        described = sources.described(ec2, self._deployment, tracked | (launched - known), now)
        reports = [*recorded, *sources.from_events(events), *described]
        after = look(before, reports, {seen.instance_id for seen in described}, run, now)
        return priced(after, sources.spot_prices(ec2, unpriced_hours(after, now), now), now)

    def _is_worth_writing(self, before: Books, after: Books) -> bool:
        looked = before.looked_unix_seconds
        if looked is None or after.looked_unix_seconds is None:
            return True
        is_same = (before.machines, before.runs) == (after.machines, after.runs)
        return not is_same or after.looked_unix_seconds - looked >= IDLE_SECONDS

    def _load(self) -> tuple[Books, str | None]:
        try:
            response = self._s3.get_object(Bucket=self._bucket, Key=self._state_key)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return Books(), None
            raise
        return documents.books_from_bytes(response["Body"].read(documents.MAX_BYTES + 1)), response["ETag"]

    def _save(self, books: Books, etag: str | None) -> None:
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        body = documents.books_to_bytes(books)
        try:
            self._s3.put_object(Bucket=self._bucket, Key=self._state_key, Body=body, **condition)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict"):
                raise LedgerTaken(self._state_key) from error
            raise
