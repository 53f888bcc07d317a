"""Who makes the prepared data of a digest, and which of what was made counts: conditional writes in the dataset bucket.

A claim is made with `If-None-Match: *`, and rewritten by its owner only, as a heart-beat. Each claim's work has a place
of its own, so that a node that was thought dead cannot mix its files into those of its successor; the first that writes
`prepared.json` decides for all.

Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html (2026-11): a conditional write
fails with 412 when the object exists, 409 when another conditional write of it is under way.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from botocore.exceptions import ClientError

from bootstrap.errors import StepError

COMMIT = "prepared.json"


@dataclass(frozen=True)
class Claim:
    """One node's word that it makes the data.

    `sequence` moves while it works; `message` says why it ended where it `failed`, in the run of `run_digest`; it is
    `released` when the node had to leave, or something around the work failed.
    """

    number: int
    instance_id: str
    run_digest: str
    sequence: int = 0
    state: Literal["working", "released", "failed"] = "working"
    message: str = ""


class ClaimStore:
    """The claims and the commit of one digest. All methods raise boto3's errors where S3 does not answer."""

    def __init__(self, s3: Any, bucket: str, digest: str) -> None:
        self.name = f"prepared/{digest}"
        self.url = f"s3://{bucket}/datasets/{self.name}"
        self._s3 = s3
        self._bucket = bucket
        self._prefix = f"datasets/{self.name}/"

    def committed(self) -> str | None:
        """Return the name, under datasets/, of the dataset that counts; None: there is none yet.

        Raises:
            StepError: The commit cannot be read.
        """
        record = self._get(COMMIT)
        if record is None:
            return None
        number = record.get("claim")
        if not isinstance(number, int):
            raise self._unreadable(COMMIT)
        return f"{self.name}/{place(number)}"

    def commit(self, number: int, facts: Mapping[str, Any]) -> bool:
        """Say that what the claim of this number made counts; returns False when another's does already."""
        return self._create(COMMIT, {"claim": number, **facts})

    def newest(self) -> Claim | None:
        """Return the newest claim.

        Raises:
            StepError: It cannot be read.
        """
        names: list[str] = []
        for page in self._s3.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=f"{self._prefix}claims/"
        ):
            names += (item["Key"][len(self._prefix) :] for item in page.get("Contents", []))
        if not names:
            return None
        name = max(names)
        record = self._get(name)
        try:
            return None if record is None else Claim(**record)
        except TypeError as error:
            raise self._unreadable(name) from error

    def make(self, claim: Claim) -> bool:
        """Write a new claim; returns False when another node was first."""
        return self._create(f"claims/{place(claim.number)}.json", dataclasses.asdict(claim))

    def rewrite(self, claim: Claim) -> None:
        """Write one's own claim again."""
        self._put(f"claims/{place(claim.number)}.json", dataclasses.asdict(claim))

    def _get(self, name: str) -> dict[str, Any] | None:
        try:
            text = self._s3.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise
        try:
            record = json.loads(text)
        except ValueError as error:
            raise self._unreadable(name) from error
        if not isinstance(record, dict):
            raise self._unreadable(name)
        return record

    def _create(self, name: str, record: Mapping[str, Any]) -> bool:
        try:
            self._put(name, record, IfNoneMatch="*")
        except ClientError as error:
            if error.response["ResponseMetadata"].get("HTTPStatusCode") in (409, 412):
                return False
            raise
        return True

    def _put(self, name: str, record: Mapping[str, Any], **conditions: str) -> None:
        body = json.dumps(record, indent=2).encode() + b"\n"
        self._s3.put_object(
            Bucket=self._bucket, Key=self._prefix + name, Body=body, ContentType="application/json", **conditions
        )

    def _unreadable(self, name: str) -> StepError:
        return StepError(
            f"{self.url}/{name}: is no record of this version",
            remedy=f"remove it: aws s3 rm --recursive {self.url}/ (the data are then prepared anew)",
        )


def place(number: int) -> str:
    """Return the name of a claim's place."""
    return f"{number:04d}"
