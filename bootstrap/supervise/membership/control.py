"""Reads and writes the control records of one run in the control bucket.

An observation requires one listing, plus one GET for each object whose ETag has changed. Every node can write here
(heartbeats only under its own name), so an invalid object must not make an observation fail. It is set aside and
reported once. Listing pages, records and bytes have limits. Only S3 errors are raised.

Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html (2026-11): a conditional write
fails with 412 if the object exists, and with 409 if another conditional write to the object is in progress.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from botocore.exceptions import ClientError, IncompleteReadError

from bootstrap.aws import AWS_ERRORS
from bootstrap.documents.object_keys import control_prefix, user_id
from bootstrap.errors import ControlStoreError
from bootstrap.supervise.membership.records import (
    MAX_MESSAGE_CHARACTERS,
    MAX_RECORD_BYTES,
    USER_ID,
    GenerationRecord,
    Heartbeat,
    RunOutcome,
    RunStatus,
    generation_from_bytes,
    heartbeat_from_bytes,
    run_outcome_from_bytes,
    to_text,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_PAGES = 10
"""Maximum number of pages per listing. S3 returns up to 1,000 keys per page."""
MAX_HEARTBEATS = 4096
MAX_REPORTS = 100
"""Maximum number of set-aside objects that a supervisor reports."""
MAX_FIRST_GENERATION = 10_000
"""Highest number allowed for a run's oldest generation record. See `last_without_gap`."""
MAX_DAMAGED_GENERATIONS = 8
"""Maximum number of damaged records after the newest valid generation record."""

_GENERATION_NAME = re.compile(r"generations/([0-9]{8})\.json")
_HEARTBEAT_NAME = re.compile(rf"heartbeats/{USER_ID}\.json")
OUTCOME_NAME = "outcome.json"
STATUS_NAME = "status.json"


@dataclass(frozen=True)
class SetAside:
    """An object that is not a control record, and the violated rule."""

    url: str
    reason: str


@dataclass(frozen=True)
class Observation:
    """A consistent view of the control records.

    Attributes:
        heartbeats: Valid heartbeats by instance id.
        newest: The newest valid generation record.
        outcome: The run's outcome.
        last_generation: Last number used by a record, valid or damaged.
        set_aside: Objects that this observation set aside for the first time.
    """

    heartbeats: Mapping[str, Heartbeat]
    newest: GenerationRecord | None
    outcome: RunOutcome | None
    last_generation: int = 0
    set_aside: tuple[SetAside, ...] = ()


@dataclass(frozen=True)
class _Listed:
    etag: str
    size_bytes: int
    modified: float


class ControlStore:
    """The control records of one run. Only one thread may call `observe`. The write methods are thread-safe.

    Args:
        s3: boto3 S3 client.
        bucket: The control bucket.
        fleet: The node's fleet.
        run: The run.
        role_id: The id of the node's role.
    """

    def __init__(self, s3: Any, *, bucket: str, fleet: str, run: str, role_id: str) -> None:
        self.run = run
        self._role_id = role_id
        self._s3 = s3
        self._bucket = bucket
        self._prefix = control_prefix(fleet, run)
        self._cache: dict[str, tuple[str, Any]] = {}
        self._newest: GenerationRecord | None = None
        self._last_generation = 0
        self._reported: set[str] = set()
        self._set_aside: list[SetAside] = []

    def observe(self) -> Observation:
        """Read every heartbeat, the newest generation and the run's outcome.

        Raises:
            ControlStoreError: The bucket does not respond.
        """
        self._set_aside = []
        try:
            return self._read(self._list())
        except AWS_ERRORS as error:
            raise ControlStoreError(f"s3://{self._bucket}/{self._prefix}: cannot read ({error})") from error

    def beat(self, heartbeat: Heartbeat) -> None:
        """Write a node's heartbeat. Raises ControlStoreError."""
        self._put(f"heartbeats/{user_id(self._role_id, heartbeat.instance_id)}.json", to_text(heartbeat))

    def elect(self, record: GenerationRecord) -> bool:
        """Write a generation record. Return False if another node wrote it first.

        Raises:
            ControlStoreError: The bucket does not respond. The record may or may not have been written.
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
        """Write the run's outcome. Raises ControlStoreError."""
        outcome = replace(outcome, message=outcome.message[:MAX_MESSAGE_CHARACTERS])
        self._put(OUTCOME_NAME, to_text(outcome))

    def report(self, status: RunStatus) -> None:
        """Write the run's status. Raises ControlStoreError."""
        self._put(STATUS_NAME, to_text(status))

    def _put(self, name: str, text: str, **conditions: str) -> None:
        key = self._prefix + name
        try:
            self._s3.put_object(
                Bucket=self._bucket, Key=key, Body=text.encode(), ContentType="application/json", **conditions
            )
        except AWS_ERRORS as error:
            raise ControlStoreError(f"s3://{self._bucket}/{key}: cannot write ({error})") from error

    def _list(self) -> dict[str, _Listed]:
        after = ""
        if self._newest is not None and self._newest.generation > 1:
            # Generations sort before heartbeats. Start after the second-newest generation, to skip older ones.
            after = self._prefix + _generation_name(self._newest.generation - 1)
        listed, complete = self._list_prefix("", after)
        if not complete:
            # Other objects fill the pages, so list each kind of record separately.
            self._put_aside("", f"more than {MAX_PAGES} pages of objects; the records are listed one kind at a time")
            listed = {}
            for kind, start in (("generations/", after), ("heartbeats/", ""), (OUTCOME_NAME, "")):
                part, _ = self._list_prefix(kind, start)
                listed.update(part)
            # A running gang's peers must stay visible, regardless of how many objects precede them in the listing.
            for name in self._cache.keys() - listed.keys():
                if self._cache[name][1] is not None and _HEARTBEAT_NAME.fullmatch(name):
                    listed[name] = _Listed("", 0, float("inf"))
        return listed

    def _list_prefix(self, kind: str, after: str) -> tuple[dict[str, _Listed], bool]:
        """Return the records of one kind, and whether the listing is complete."""
        listed: dict[str, _Listed] = {}
        start = {"StartAfter": after} if after else {}
        pages = self._s3.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + kind, **start
        )
        for number, page in enumerate(pages, 1):
            for item in page.get("Contents", []):
                name = item["Key"][len(self._prefix) :]
                if _GENERATION_NAME.fullmatch(name) or _HEARTBEAT_NAME.fullmatch(name) or name == OUTCOME_NAME:
                    listed[name] = _Listed(item["ETag"], item["Size"], item["LastModified"].timestamp())
                elif name != STATUS_NAME:
                    self._put_aside(name, "is not the name of a control record")
            if number == MAX_PAGES:
                return listed, not page.get("IsTruncated", False)
        return listed, True

    def _read(self, listed: Mapping[str, _Listed]) -> Observation:
        heartbeats: dict[str, Heartbeat] = {}
        for name in self._heartbeat_names(listed):
            beat = self._cached(name, listed[name], heartbeat_from_bytes)
            if beat is not None:
                heartbeats[beat.instance_id] = beat
        self._read_generations(listed)
        outcome = None
        if OUTCOME_NAME in listed:
            outcome = self._cached(OUTCOME_NAME, listed[OUTCOME_NAME], run_outcome_from_bytes)
        self._cache = {name: entry for name, entry in self._cache.items() if name in listed}
        return Observation(heartbeats, self._newest, outcome, self._last_generation, tuple(self._set_aside))

    def _heartbeat_names(self, listed: Mapping[str, _Listed]) -> list[str]:
        """Return the names of heartbeats. If there are too many, return the latest: live nodes rewrite theirs."""
        names = [name for name in listed if name.startswith("heartbeats/")]
        if len(names) > MAX_HEARTBEATS:
            self._put_aside("heartbeats/", f"{len(names)} heartbeats; only the latest {MAX_HEARTBEATS} are read")
            names = sorted(names, key=lambda name: listed[name].modified, reverse=True)[:MAX_HEARTBEATS]
        return names

    def _read_generations(self, listed: Mapping[str, _Listed]) -> None:
        """Find the newest generation. Elections use the numbers in order, so numbers after a gap are ignored."""
        matches = (_GENERATION_NAME.fullmatch(name) for name in listed)
        numbers = sorted(int(match[1]) for match in matches if match is not None)
        last, after_gap = last_without_gap(numbers, self._last_generation)
        self._last_generation = last
        for number in after_gap:
            self._put_aside(_generation_name(number), f"generation {last + 1} was not elected before it")
        oldest = self._newest.generation if self._newest is not None else 0
        for number in range(last, max(oldest, last - MAX_DAMAGED_GENERATIONS) - 1, -1):
            name = _generation_name(number)
            record = self._cached(name, listed[name], generation_from_bytes) if name in listed else None
            if record is not None:
                self._newest = record
                return

    def _cached(self, name: str, listed: _Listed, decode: Callable[[bytes, str], T]) -> T | None:
        """Return the record in an object, or None if the object was deleted or is not a record."""
        kept = self._cache.get(name)
        if kept is not None and kept[0] == listed.etag:
            return kept[1]  # type: ignore[no-any-return]  # the result of `decode` for the same bytes
        value, etag = None, listed.etag
        try:
            if listed.size_bytes > MAX_RECORD_BYTES:
                raise ControlStoreError(f"{listed.size_bytes} bytes: must have at most {MAX_RECORD_BYTES}")
            answer = self._s3.get_object(Bucket=self._bucket, Key=self._prefix + name)
            etag, content = answer["ETag"], answer["Body"].read(MAX_RECORD_BYTES + 1)
            if len(content) < min(answer["ContentLength"], MAX_RECORD_BYTES + 1):
                # The record may be valid: the next observation reads it again.
                raise IncompleteReadError(actual_bytes=len(content), expected_bytes=answer["ContentLength"])
            value = decode(content, f"s3://{self._bucket}/{self._prefix}{name}")
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":  # deleted since the listing
                return None
            raise
        except ControlStoreError as error:
            self._put_aside(name, str(error))
        self._cache[name] = (etag, value)
        return value

    def _put_aside(self, name: str, reason: str) -> None:
        if name in self._reported or len(self._reported) >= MAX_REPORTS:
            return
        self._reported.add(name)
        self._set_aside.append(SetAside(f"s3://{self._bucket}/{self._prefix}{name}", reason))


def last_without_gap(numbers: Iterable[int], known: int) -> tuple[int, list[int]]:
    """Return the last number before the first gap after `known` in the ascending numbers, and the numbers after it.

    If no number is known yet, any first number up to MAX_FIRST_GENERATION is accepted, because a user may have removed
    earlier records.
    """
    last, after_gap = known, []
    for number in numbers:
        if number == last + 1 or (last == 0 < number <= MAX_FIRST_GENERATION):
            last = number
        elif number > last:
            after_gap.append(number)
    return last, after_gap


def _generation_name(generation: int) -> str:
    return f"generations/{generation:08d}.json"
