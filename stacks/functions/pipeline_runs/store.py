"""The pipeline's objects in the control bucket. All are under `pipelines/`, which nodes can neither read nor write.

pipelines/slots/<fleet>.json        the member that occupies a slot, with its task token; {} if the slot is free
pipelines/members/<digest>.json     the newest run with these inputs, and its result once it has finished
pipelines/executions/<execution>/<step>/<index %05d>.json       each finished member of an execution
pipelines/started/<execution>/<step>/<run>                      an empty object for each run that an execution started
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.exceptions import ClientError

from .records import InvalidRecord, Outcome, Result, Status, Task, outcome_of, result_of, status_of, task_of, to_bytes

SLOTS = "pipelines/slots/"
MISSING = ("NoSuchKey", "404")
TAKEN = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
"""Errors of a conditional write if another one came first. Source (2026-11):
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html"""
READERS = 16


class SlotTaken(Exception):
    """Another invocation has changed the slot since it was read."""


class Store:
    """Reads and writes the objects.

    Args:
        s3: A boto3 client.
        bucket: The control bucket.
    """

    def __init__(self, s3: Any, bucket: str) -> None:
        self._s3 = s3
        self._bucket = bucket

    def slot(self, fleet: str) -> tuple[Task | None, str | None]:
        """Return the task in a slot and the object's ETag, or None if the object does not exist.

        Raises:
            InvalidRecord: The object is invalid.
        """
        found = self._get(f"{SLOTS}{fleet}.json")
        return (None, None) if found is None else (task_of(found[0]), found[1])

    def put_slot(self, fleet: str, task: Task | None, etag: str | None) -> str:
        """Replace the object of a slot if it has not changed. Return the new ETag.

        Raises:
            SlotTaken: It has changed.
        """
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        body = b"{}" if task is None else to_bytes(task)
        key = f"{SLOTS}{fleet}.json"
        try:
            answer = self._s3.put_object(Bucket=self._bucket, Key=key, Body=body, **condition)
        except ClientError as error:
            if error.response["Error"]["Code"] in (*TAKEN, *MISSING):
                raise SlotTaken(fleet) from error
            raise
        return str(answer["ETag"])

    def member(self, digest: str) -> Result | None:
        """Return the newest run with these inputs. An invalid object is ignored, and the member runs again."""
        found = self._get(f"pipelines/members/{digest}.json")
        try:
            return None if found is None else result_of(found[0])
        except InvalidRecord:
            return None

    def put_member(self, result: Result) -> None:
        """Store the newest run with a digest."""
        self._put(f"pipelines/members/{result.digest}.json", to_bytes(result))

    def put_start(self, task: Task) -> None:
        """Record that an execution has started a run. The costs of an execution are those of these runs."""
        self._put(f"{started_prefix(task.execution)}{task.step}/{task.run}", b"")

    def put_result(self, execution: str, result: Result) -> None:
        """Store a finished member of an execution."""
        self._put(_result_key(execution, result.step, result.index), to_bytes(result))

    def results(self, execution: str, step: str, count: int) -> list[Result]:
        """Return the members of a step.

        Raises:
            InvalidRecord: A member's object is missing or invalid.
        """
        with ThreadPoolExecutor(READERS) as pool:
            keys = [_result_key(execution, step, index) for index in range(count)]
            contents = list(pool.map(self._get, keys))
        absent = [key for key, found in zip(keys, contents, strict=True) if found is None]
        if absent:
            raise InvalidRecord(f"{', '.join(absent[:10])}: missing")
        return [result_of(each[0]) for each in contents if each is not None]

    def outcome(self, fleet: str, run: str) -> Outcome | None:
        """Return a run's outcome. Raises InvalidRecord."""
        found = self._get(_outcome_key(fleet, run))
        return None if found is None else outcome_of(found[0])

    def status(self, fleet: str, run: str) -> Status | None:
        """Return a run's status. Raises InvalidRecord."""
        found = self._get(f"runs/{fleet}/{run}/control/status.json")
        return None if found is None else status_of(found[0])

    def lift_outcome(self, fleet: str, run: str) -> None:
        """Delete the outcome of a failed run, so that its nodes continue from the newest checkpoint."""
        self._s3.delete_object(Bucket=self._bucket, Key=_outcome_key(fleet, run))

    def objects(self, bucket: str, prefix: str) -> Sequence[tuple[str, int, str]]:
        """Return key, size and ETag of the objects with a prefix."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [(each["Key"], each["Size"], each["ETag"]) for page in pages for each in page.get("Contents", [])]

    def _get(self, key: str) -> tuple[bytes, str] | None:
        try:
            answer = self._s3.get_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            if error.response["Error"]["Code"] in MISSING:
                return None
            raise
        content: bytes = answer["Body"].read()
        return content, str(answer["ETag"])

    def _put(self, key: str, body: bytes) -> None:
        self._s3.put_object(Bucket=self._bucket, Key=key, Body=body)


def started_prefix(execution: str) -> str:
    """Return the prefix of the objects of the runs that an execution started."""
    return f"pipelines/started/{execution}/"


def _outcome_key(fleet: str, run: str) -> str:
    return f"runs/{fleet}/{run}/control/outcome.json"


def _result_key(execution: str, step: str, index: int) -> str:
    return f"pipelines/executions/{execution}/{step}/{index:05d}.json"
