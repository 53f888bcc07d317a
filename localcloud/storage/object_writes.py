"""Conditional S3 writes, and the checks of multipart uploads that moto omits.

Writes to the same key run one after another, so only one of several conditional writes succeeds.
Sources (2026-11): https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html,
https://docs.aws.amazon.com/AmazonS3/latest/API/API_CompleteMultipartUpload.html
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from moto.s3.exceptions import MissingBucket
from moto.s3.models import FakeBucket, FakeKey, FakeMultipart, s3_backends

from localcloud.api import ApiError, Call, Observer, Service
from localcloud.http.chunked_body import checksum_of, require_algorithm

WRITES = frozenset({"PutObject", "CopyObject", "CompleteMultipartUpload", "DeleteObject"})
OF_AN_UPLOAD = frozenset(
    {"UploadPart", "UploadPartCopy", "CompleteMultipartUpload", "AbortMultipartUpload", "ListParts"}
)
LARGEST_PART_NUMBER = 10_000
PART_CHECKSUMS = {"ChecksumCRC32": "crc32", "ChecksumSHA1": "sha1", "ChecksumSHA256": "sha256"}
NOT_EMULATED = {
    "CopySourceIfModifiedSince": "x-amz-copy-source-if-modified-since",
    "CopySourceIfUnmodifiedSince": "x-amz-copy-source-if-unmodified-since",
}
"""Conditions on the source of a copy, which moto ignores."""
DIRECTORY_BUCKETS_ONLY = {
    "IfMatchLastModifiedTime": "x-amz-if-match-last-modified-time",
    "IfMatchSize": "x-amz-if-match-size",
}
HEADER = "A header you provided implies functionality that is not implemented"

Name = tuple[str, str]
"""A bucket and a key."""


@dataclass
class _Turn:
    """The lock for a key, and the number of calls that hold it or wait for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0


class ObjectWrites(Service):
    """Checks calls before moto handles them, and records which writes finished during an upload."""

    name = "s3"

    def __init__(self, account: str) -> None:
        self._account = account
        self._sequence = itertools.count(1)
        self._changes: dict[Name, int] = {}
        self._begun: dict[str, int] = {}
        self._turns: dict[Name, _Turn] = {}
        self._lock = threading.Lock()

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return the observers that record writes and uploads."""
        return {
            **{("s3", operation): self._changed for operation in WRITES},
            ("s3", "DeleteObjects"): self._deleted_several,
            ("s3", "CreateMultipartUpload"): self._began,
        }

    @contextmanager
    def guard(self, call: Call) -> Iterator[None]:
        """Check an S3 call, and make other writes to its key wait until it has finished.

        Raises:
            ApiError: The call fails the check. The error is the same as on AWS.
        """
        bucket = self._bucket(call)
        if bucket is None:  # moto returns NoSuchBucket, or the call has no bucket
            yield
            return
        _check_headers(call)
        upload = _upload(bucket, call) if call.operation in OF_AN_UPLOAD else None
        if call.operation not in WRITES:
            yield
            return
        arrived = self._begun.get(str(call.parameters.get("UploadId"))) or next(self._sequence)
        with self._turn((bucket.name, str(call.parameters["Key"]))):
            self._check_condition(call, bucket, arrived)
            if call.operation == "CompleteMultipartUpload" and upload is not None:
                _check_parts(call, upload)
            if call.operation == "CopyObject":
                self._check_source(call)
            yield

    def _bucket(self, call: Call) -> FakeBucket | None:
        try:
            return s3_backends[self._account]["aws"].get_bucket(str(call.parameters.get("Bucket")))
        except MissingBucket:
            return None

    @contextmanager
    def _turn(self, name: Name) -> Iterator[None]:
        with self._lock:
            turn = self._turns.setdefault(name, _Turn())
            turn.users += 1
        try:
            with turn.lock:
                yield
        finally:
            with self._lock:
                turn.users -= 1
                if turn.users == 0:
                    del self._turns[name]

    def _check_condition(self, call: Call, bucket: FakeBucket, arrived: int) -> None:
        """Check If-Match and If-None-Match against the current object, and against writes since the call arrived."""
        wanted, absent = call.parameters.get("IfMatch"), call.parameters.get("IfNoneMatch")
        if wanted is None and absent is None:
            return
        key = str(call.parameters["Key"])
        found = bucket.keys.get(key)
        current = found if isinstance(found, FakeKey) else None  # otherwise, it is absent or a delete marker
        if call.operation == "DeleteObject":
            return  # moto checks it
        if wanted is not None and current is None:
            raise ApiError("NoSuchKey", "The specified key does not exist.", 404)
        if current is not None and (wanted is None or wanted.strip('"') != current.etag.strip('"')):
            raise ApiError(*_PRECONDITION_FAILED)
        if self._changes.get((bucket.name, key), 0) > arrived:
            conflict = "The conditional request cannot succeed due to a conflicting operation against this resource."
            raise ApiError("ConditionalRequestConflict", conflict, 409)

    def _check_source(self, call: Call) -> None:
        """Check the conditions on the source's ETag."""
        wanted, other = (call.parameters.get(f"CopySource{name}") for name in ("IfMatch", "IfNoneMatch"))
        source = str(call.parameters["CopySource"]).lstrip("/")
        bucket, slash, key = unquote(source.partition("?")[0]).partition("/")
        if not slash or not key:
            raise ApiError("InvalidArgument", "Invalid copy source object key")
        if wanted is None and other is None:
            return
        version = source.partition("?versionId=")[2] or None
        found = s3_backends[self._account]["aws"].get_object(bucket, key, version_id=version)
        etag = found.etag.strip('"') if found is not None else None  # moto returns the error for a missing object
        if etag is not None and (wanted not in (None, etag, f'"{etag}"') or other in (etag, f'"{etag}"')):
            raise ApiError(*_PRECONDITION_FAILED)

    def _changed(self, call: Call, answer: Mapping[str, Any]) -> None:
        self._changes[str(call.parameters["Bucket"]), str(call.parameters["Key"])] = next(self._sequence)

    def _deleted_several(self, call: Call, answer: Mapping[str, Any]) -> None:
        for entry in call.parameters.get("Delete", {}).get("Objects", []):
            self._changes[str(call.parameters["Bucket"]), str(entry["Key"])] = next(self._sequence)

    def _began(self, call: Call, answer: Mapping[str, Any]) -> None:
        self._begun[str(answer["UploadId"])] = next(self._sequence)


_PRECONDITION_FAILED = ("PreconditionFailed", "At least one of the pre-conditions you specified did not hold", 412)


def _check_headers(call: Call) -> None:
    parameters = call.parameters
    for name, header in DIRECTORY_BUCKETS_ONLY.items():
        if name in parameters and call.operation == "DeleteObject":
            raise ApiError("NotImplemented", f"{HEADER}: {header}", 501)
    for name, header in NOT_EMULATED.items():
        if name in parameters:
            raise ApiError("NotImplemented", f"the embedded cloud does not check {header}; remove the header", 501)
    if call.operation == "UploadPartCopy" and {"CopySourceIfMatch", "CopySourceIfNoneMatch"} & set(parameters):
        raise ApiError("NotImplemented", "the embedded cloud does not check conditions of UploadPartCopy", 501)
    if call.operation == "CreateMultipartUpload":
        _check_algorithm(parameters)
    if call.operation in WRITES:
        if "IfMatch" in parameters and "IfNoneMatch" in parameters:
            raise ApiError("NotImplemented", HEADER, 501)
        if parameters.get("IfNoneMatch", "*") != "*":
            raise ApiError("NotImplemented", HEADER, 501)
        if parameters.get("IfMatch") == "*" and call.operation != "DeleteObject":
            raise ApiError("NotImplemented", HEADER, 501)


def _check_algorithm(parameters: Mapping[str, Any]) -> None:
    algorithm, kind = parameters.get("ChecksumAlgorithm"), parameters.get("ChecksumType")
    if algorithm is not None:
        require_algorithm(str(algorithm))
    elif kind is not None:
        rule = "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header."
        raise ApiError("InvalidRequest", rule)
    if kind == "FULL_OBJECT" and algorithm in ("SHA1", "SHA256"):
        rule = f"The FULL_OBJECT checksum type cannot be used with the {algorithm.lower()} checksum algorithm."
        raise ApiError("InvalidRequest", rule)


def _upload(bucket: FakeBucket, call: Call) -> FakeMultipart | None:
    """Return the upload named in a call, or None if the call repeats the completion of the current object's upload."""
    identity, key = str(call.parameters["UploadId"]), str(call.parameters["Key"])
    number = call.parameters.get("PartNumber")
    if number is not None and not 1 <= number <= LARGEST_PART_NUMBER:
        rule = f"Part number must be an integer between 1 and {LARGEST_PART_NUMBER}, inclusive"
        raise ApiError("InvalidArgument", rule)
    found = bucket.multiparts.get(identity)
    if found is not None and found.key_name == key:
        return found
    existing = bucket.keys.get(key)
    made_by = existing.multipart if isinstance(existing, FakeKey) else None
    if call.operation == "CompleteMultipartUpload" and made_by is not None and made_by.id == identity:
        return None
    rule = "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or "
    raise ApiError("NoSuchUpload", rule + "completed.", 404)


def _check_parts(call: Call, upload: FakeMultipart) -> None:
    parts = call.parameters.get("MultipartUpload", {}).get("Parts", [])
    if not parts:
        raise ApiError("InvalidRequest", "You must specify at least one part")
    numbers = [int(part["PartNumber"]) for part in parts]
    if any(later <= earlier for earlier, later in itertools.pairwise(numbers)):
        rule = "The list of parts was not in ascending order. Parts must be ordered by part number."
        raise ApiError("InvalidPartOrder", rule)
    for part in parts:
        stored = upload.parts.get(int(part["PartNumber"]))
        given = {name: value for name, value in part.items() if name.startswith("Checksum")}
        if stored is not None and any(_differs(name, value, stored.value) for name, value in given.items()):
            rule = "One or more of the specified parts could not be found.  The part may not have been uploaded, or "
            raise ApiError("InvalidPart", rule + "the specified entity tag may not match the part's entity tag.")
    size = call.parameters.get("MpuObjectSize")
    computed = sum(len(upload.parts[number].value) for number in numbers if number in upload.parts)
    if size is not None and int(size) != computed:
        rule = f"The provided 'x-amz-mp-object-size' header value {size} does not match what was computed: {computed}"
        raise ApiError("InvalidRequest", rule)
    for name, algorithm in PART_CHECKSUMS.items():
        expected = call.parameters.get(name)
        if expected is None or "-" in expected:  # COMPOSITE: a checksum of the parts' checksums
            continue
        content = b"".join(upload.parts[number].value for number in numbers if number in upload.parts)
        if _differs(name, expected, content):
            raise ApiError("BadDigest", f"The {algorithm} you specified did not match the calculated checksum.")


def _differs(name: str, value: str, data: bytes) -> bool:
    algorithm = PART_CHECKSUMS.get(name)
    if algorithm is None:
        require_algorithm(name.removeprefix("Checksum"))
        raise AssertionError("require_algorithm raises for all other checksums")
    return checksum_of(algorithm, data) != value
