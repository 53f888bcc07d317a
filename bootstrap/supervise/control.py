"""Reads and writes the control records of one run in the checkpoint bucket.

One listing an observation, and one GET for each object whose ETag changed.

Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html (2026-11): a
conditional write fails with 412 when the object exists, 409 when another conditional write of it is under way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from bootstrap.aws import AWS_ERRORS
from bootstrap.errors import ControlStoreError
from bootstrap.supervise.records import (
    GenerationRecord,
    Heartbeat,
    RunOutcome,
    generation_from_text,
    heartbeat_from_text,
    run_outcome_from_text,
    to_text,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Observation:
    """What the control records say at one moment."""

    heartbeats: Mapping[str, Heartbeat]
    newest: GenerationRecord | None
    outcome: RunOutcome | None


class ControlStore:
    """The control records of one run. `observe` is for one thread; the writes may come from any."""

    def __init__(self, s3: Any, *, bucket: str, run: str) -> None:
        self.run = run
        self._s3 = s3
        self._bucket = bucket
        self._prefix = f"runs/{run}/control/"
        self._cache: dict[str, tuple[str, Any]] = {}
        self._newest: GenerationRecord | None = None

    def observe(self) -> Observation:
        """Read every heart-beat, the newest generation and the run's outcome.

        Raises:
            ControlStoreError: The bucket does not answer, or a record cannot be read.
        """
        try:
            etags = self._list()
            return self._read(etags)
        except AWS_ERRORS as error:
            raise ControlStoreError(f"s3://{self._bucket}/{self._prefix}: cannot be read ({error})") from error

    def beat(self, heartbeat: Heartbeat) -> None:
        """Write a node's heart-beat; raises ControlStoreError."""
        self._put(f"heartbeats/{heartbeat.instance_id}.json", to_text(heartbeat))

    def elect(self, record: GenerationRecord) -> bool:
        """Write a generation record; returns False when another node was first.

        Raises:
            ControlStoreError: The bucket does not answer; whether the record was written is then not known.
        """
        try:
            self._put(_generation_name(record.generation), to_text(record), IfNoneMatch="*")
        except ControlStoreError as error:
            cause = error.__cause__
            status = (
                cause.response["ResponseMetadata"].get("HTTPStatusCode") if isinstance(cause, ClientError) else None
            )
            if status in (409, 412):
                return False
            raise
        return True

    def record_outcome(self, outcome: RunOutcome) -> None:
        """Write how the run ended; raises ControlStoreError."""
        self._put("outcome.json", to_text(outcome))

    def _put(self, name: str, text: str, **conditions: str) -> None:
        key = self._prefix + name
        try:
            self._s3.put_object(
                Bucket=self._bucket, Key=key, Body=text.encode(), ContentType="application/json", **conditions
            )
        except AWS_ERRORS as error:
            raise ControlStoreError(f"s3://{self._bucket}/{key}: cannot be written ({error})") from error

    def _list(self) -> dict[str, str]:
        start: dict[str, str] = {}
        if self._newest is not None and self._newest.generation > 1:
            # Generations sort before heart-beats: starting behind the last but one spares listing all of history.
            start = {"StartAfter": self._prefix + _generation_name(self._newest.generation - 1)}
        etags: dict[str, str] = {}
        for page in self._s3.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix, **start
        ):
            for item in page.get("Contents", []):
                etags[item["Key"][len(self._prefix) :]] = item["ETag"]
        return etags

    def _read(self, etags: Mapping[str, str]) -> Observation:
        heartbeats: dict[str, Heartbeat] = {}
        for name, etag in etags.items():
            if name.startswith("heartbeats/"):
                beat = self._cached(name, etag, heartbeat_from_text)
                if beat is not None:
                    heartbeats[beat.instance_id] = beat
        generations = [name for name in etags if name.startswith("generations/")]
        if generations:
            newest = max(generations)
            self._newest = self._cached(newest, etags[newest], generation_from_text) or self._newest
        outcome = None
        if "outcome.json" in etags:
            outcome = self._cached("outcome.json", etags["outcome.json"], run_outcome_from_text)
        self._cache = {name: entry for name, entry in self._cache.items() if name in etags}
        return Observation(heartbeats, self._newest, outcome)

    def _cached(self, name: str, etag: str, decode: Callable[[str, str], T]) -> T | None:
        kept = self._cache.get(name)
        if kept is not None and kept[0] == etag:
            return kept[1]  # type: ignore[no-any-return]  # what `decode` made of the same bytes
        try:
            answer = self._s3.get_object(Bucket=self._bucket, Key=self._prefix + name)
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":  # removed since the listing
                return None
            raise
        value = decode(answer["Body"].read().decode(), f"s3://{self._bucket}/{self._prefix}{name}")
        self._cache[name] = (answer["ETag"], value)
        return value


def _generation_name(generation: int) -> str:
    return f"generations/{generation:08d}.json"
