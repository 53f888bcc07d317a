"""Claims on the preparation of a dataset, and the commit of the result, as conditional writes in the dataset bucket.

A claim is created with `If-None-Match: *` and never changes. Its owner reports progress, which is also its heartbeat,
under its own user id, where the role does not allow other nodes to write. Each claim has its own directory, so a node
that was wrongly considered dead cannot mix its files with its successor's. The first node to write `prepared.json`
determines the result for all nodes.

Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html (2026-11): a conditional write
fails with 412 if the object exists, and with 409 if another conditional write to the object is in progress.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from botocore.exceptions import ClientError, IncompleteReadError

from bootstrap.documents.decoding import AtLeast, Between, Matches, decode_record
from bootstrap.documents.object_keys import user_id
from bootstrap.errors import DocumentError, StepError

COMMIT = "prepared.json"
MAX_CLAIMS = 20
"""Maximum number of nodes that may try to prepare the same data."""
MAX_RECORD_BYTES = 65536
MAX_MESSAGE_CHARACTERS = 4096


_InstanceId = Annotated[str, Matches(r"i-[0-9a-z-]{1,40}", "must be an instance id, such as i-0123456789abcdef0")]
_RoleId = Annotated[str, Matches(r"[\w-]{0,128}", "must be the id of an IAM role")]


@dataclass(frozen=True)
class Claim:
    """A node's claim to prepare the data.

    Attributes:
        number: Number of the claim, from 1.
        instance_id: Owner of the claim.
        run_digest: Digest of the owner's run document.
        role_id: Id of the owner's role.
        sequence: Increases with each heartbeat.
        state: `failed`: the function failed; `released`: the node had to stop, or something else failed.
        message: Cause of `failed` and `released`.
    """

    number: Annotated[int, Between(1, MAX_CLAIMS)]
    instance_id: _InstanceId
    run_digest: str
    role_id: _RoleId = ""
    sequence: Annotated[int, AtLeast(0)] = 0
    state: Literal["working", "released", "failed"] = "working"
    message: Annotated[str, Matches(r"[\s\S]*", "must be text")] = ""


@dataclass(frozen=True)
class _Progress:
    """The progress of a claim, rewritten by its owner. The keys have the same meaning as in `Claim`."""

    sequence: Annotated[int, AtLeast(0)]
    state: Literal["working", "released", "failed"]
    message: Annotated[str, Matches(r"[\s\S]*", "must be text")]


@dataclass(frozen=True)
class _Commit:
    claim: Annotated[int, Between(1, MAX_CLAIMS)]


class ClaimStore:
    """The claims and the commit for one digest. Every method raises a boto3 error if S3 does not respond."""

    def __init__(self, s3: Any, bucket: str, digest: str) -> None:
        self.name = f"prepared/{digest}"
        self.url = f"s3://{bucket}/datasets/{self.name}"
        self._s3 = s3
        self._bucket = bucket
        self._prefix = f"datasets/{self.name}/"

    def committed(self) -> str | None:
        """Return the name, under datasets/, of the committed dataset, or None.

        Raises:
            StepError: The commit is invalid.
        """
        record = self._get(COMMIT)
        if record is None:
            return None
        try:
            commit = decode_record(_Commit, record, f"{self.url}/{COMMIT}")
        except DocumentError as error:
            raise StepError(
                f"{self.url}/{COMMIT}: not a record in this version's format ({error.problems[0]})",
                remedy=f"remove it: aws s3 rm --recursive {self.url}/ (a node then prepares the data again)",
            ) from error
        return f"{self.name}/{directory_of(commit.claim)}"

    def commit(self, number: int, facts: Mapping[str, Any]) -> bool:
        """Commit a claim's dataset. Return False if another claim was already committed."""
        return self._create(COMMIT, {"claim": number, **facts})

    def newest(self) -> Claim | None:
        """Return the newest claim, or None. An invalid claim keeps its number and is treated as released."""
        newest = None
        for number in range(1, MAX_CLAIMS + 1):
            name = f"claims/{directory_of(number)}.json"
            record = self._get(name)
            if record is None:
                break
            try:
                newest = decode_record(Claim, record, f"{self.url}/{name}")
                problem = "" if newest.number == number else f"has number {newest.number}"
            except DocumentError as error:
                problem = str(error.problems[0])
            if problem:
                newest = Claim(number, "", "", state="released", message=f"{self.url}/{name}: {problem}")
        return newest if newest is None or newest.state != "working" else self._with_progress(newest)

    def _with_progress(self, claim: Claim) -> Claim:
        """Return a claim with its owner's progress. An object that is not a progress record releases the claim."""
        name = _progress_name(claim)
        record = self._get(name)
        if record is None:
            return claim
        try:
            progress = decode_record(_Progress, record, f"{self.url}/{name}")
        except DocumentError as error:
            return replace(claim, state="released", message=f"{self.url}/{name}: {error.problems[0]}")
        return replace(claim, sequence=progress.sequence, state=progress.state, message=progress.message)

    def create(self, claim: Claim) -> bool:
        """Write a new claim. Return False if another node wrote it first."""
        return self._create(f"claims/{directory_of(claim.number)}.json", dataclasses.asdict(claim))

    def report(self, claim: Claim) -> None:
        """Overwrite the progress of the caller's claim."""
        self._put(_progress_name(claim), {name: getattr(claim, name) for name in ("sequence", "state", "message")})

    def _get(self, name: str) -> bytes | None:
        """Return the beginning of an object, up to the size of a record, or None if the object does not exist."""
        try:
            answer = self._s3.get_object(Bucket=self._bucket, Key=self._prefix + name)
            content: bytes = answer["Body"].read(MAX_RECORD_BYTES)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise
        expected = min(answer["ContentLength"], MAX_RECORD_BYTES)
        if len(content) < expected:
            raise IncompleteReadError(actual_bytes=len(content), expected_bytes=expected)
        return content  # the beginning of a longer object is not a record

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


def _progress_name(claim: Claim) -> str:
    return f"progress/{user_id(claim.role_id, claim.instance_id)}/{directory_of(claim.number)}.json"


def directory_of(number: int) -> str:
    """Return the directory name of a claim's dataset."""
    return f"{number:04d}"
