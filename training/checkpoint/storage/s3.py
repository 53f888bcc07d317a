"""An S3 prefix as a checkpoint store. Requests have timeouts and a retry limit, and error messages include the remedy.

The role needs s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject and s3:DeleteObject on the prefix. If the
bucket uses a customer-managed key, the role also needs kms:GenerateDataKey and kms:Decrypt.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError

from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.parallel import results_of
from training.errors import AlreadyExistsError, NotFoundError, StoreError

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_SECONDS = 5
READ_TIMEOUT_SECONDS = 20
ATTEMPTS = 10
"""Attempts per request. With botocore's standard backoff, a request fails after about 20 s of errors, two minutes of
throttling or, in the worst case, four minutes without a response. The limit is long enough for a brief S3 outage.
Source: https://docs.aws.amazon.com/boto3/latest/guide/retries.html (2025-06); botocore 1.44, retries/standard.py."""
CONNECTIONS = 32
CONFLICT_ATTEMPTS = 20
CONFLICT_PAUSE_SECONDS = 0.25
DELETE_BATCH = 1000
"""Maximum number of keys in a DeleteObjects request.
Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html (2025-06)."""
MAX_PAGE = 1000
"""Maximum number of keys in a page of a listing.
Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html (2025-06)."""

MULTIPART_BYTES = 64 * 1024 * 1024
"""Objects of at least this size are uploaded in parts, so that a failure costs only one part. Chunks are smaller."""
RANGED_BYTES = 32 * 1024 * 1024
"""Objects of at least this size are read in parallel ranges, because one connection transfers only about 90 MB/s.
Chunks are smaller, and several are read in parallel."""
PART_BYTES = 16 * 1024 * 1024
"""Size of an upload part or a range. S3 recommends 8 to 16 MB.
Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html (2025-06)."""
PART_THREADS = 4
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

REMEDIES = {
    "AccessDenied": "allow {action} in the role, bucket and endpoint policies, and allow the use of the KMS key",
    "NoSuchBucket": "create the bucket, or correct the URL",
    "InvalidAccessKeyId": "provide valid credentials for this process",
    "SignatureDoesNotMatch": "provide valid credentials for this process",
    "ExpiredToken": "refresh this process's credentials",
    "InvalidObjectState": "it is archived: `python -m training checkpoint restore` makes it readable within hours",
    "RequestTimeTooSkewed": "set this machine's clock",
}

Content = TypeVar("Content")


class StoredObject(NamedTuple):
    """An object's size and storage class."""

    bytes: int
    storage_class: str


class _Large(NamedTuple):
    """An object to read in ranges, all of them from the same version."""

    bytes: int
    etag: str


class S3Backend:
    """Stores objects in S3 under a prefix; see :class:`training.checkpoint.storage.backend.Backend`.

    Args:
        bucket: name of the bucket.
        prefix: key prefix without leading and trailing slashes; may be empty.
        client: boto3 S3 client; by default, a client with the environment's region, endpoint and credentials.
    """

    def __init__(self, bucket: str, prefix: str, client: Any = None) -> None:
        self.url = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._client = client or boto3.client(
            "s3",
            config=Config(
                connect_timeout=CONNECT_TIMEOUT_SECONDS,
                read_timeout=READ_TIMEOUT_SECONDS,
                retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
                max_pool_connections=CONNECTIONS,
                # Do not verify S3's checksums of responses: chunks have a stronger hash. By default, S3 verifies
                # uploads.
                response_checksum_validation="when_required",
            ),
        )

    def put(self, key: str, content: bytes) -> None:
        """Call PutObject; upload a large object in parts."""
        with self._store_errors("s3:PutObject", key):
            if len(content) >= MULTIPART_BYTES:
                self._put_parts(self._prefix + key, content, {})
            else:
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=content)

    def _put_parts(self, key: str, content: bytes, conditions: dict[str, str]) -> None:
        """Upload in parts, and complete the upload with conditions. Abort a failed upload: its parts are billed."""
        upload = {"Bucket": self._bucket, "Key": key}
        upload["UploadId"] = self._client.create_multipart_upload(**upload)["UploadId"]

        def put_part(number: int) -> dict[str, Any]:
            body = content[(number - 1) * PART_BYTES : number * PART_BYTES]
            return {
                "PartNumber": number,
                "ETag": self._client.upload_part(**upload, PartNumber=number, Body=body)["ETag"],
            }

        try:
            with ThreadPoolExecutor(PART_THREADS, thread_name_prefix="checkpoint-part") as pool:
                parts = list(pool.map(put_part, range(1, math.ceil(len(content) / PART_BYTES) + 1)))
            self._client.complete_multipart_upload(**upload, **conditions, MultipartUpload={"Parts": parts})
        except BaseException:
            try:
                self._client.abort_multipart_upload(**upload)
            except (BotoCoreError, ClientError, HTTPClientError) as error:
                # Raise the upload's error, not this one. A lifecycle rule eventually removes the parts.
                logger.warning("s3://%s/%s: parts of a failed upload remain: %s", self._bucket, key, error)
            raise

    def create(self, key: str, content: bytes) -> None:
        """Write with If-None-Match. Retry after 409: another conditional write to the key is in progress.

        A large object is uploaded in parts, and its completion has the condition. After 409, all parts must be uploaded
        again.

        Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html (2025-06).
        """
        for attempt in range(CONFLICT_ATTEMPTS):
            try:
                with self._store_errors("s3:PutObject", key):
                    if len(content) >= MULTIPART_BYTES:
                        self._put_parts(self._prefix + key, content, {"IfNoneMatch": "*"})
                    else:
                        name = self._prefix + key
                        self._client.put_object(Bucket=self._bucket, Key=name, Body=content, IfNoneMatch="*")
                return
            except _ConflictError:
                if attempt == CONFLICT_ATTEMPTS - 1:
                    raise
                time.sleep(CONFLICT_PAUSE_SECONDS * random.uniform(0.5, 1.0))  # noqa: S311

    def get(self, key: str) -> bytes:
        """Call GetObject, reading a large object in ranges."""

        def read(response: Any) -> bytes | _Large:
            if response["ContentLength"] >= RANGED_BYTES:
                return _large(response)
            body: bytes = response["Body"].read()
            return body

        found = self._read(key, read)
        if not isinstance(found, _Large):
            return found
        content = bytearray(found.bytes)
        self._read_ranges(key, found, [memoryview(content)])
        return bytes(content)

    def get_range(self, key: str, first: int, size: int) -> bytes:
        """Read ``size`` bytes at offset ``first``; fewer at the object's end."""

        def read(response: Any) -> bytes:
            body: bytes = response["Body"].read()
            return body

        return self._read(key, read, Range=f"bytes={first}-{first + size - 1}")

    def read_into(self, key: str, buffers: list[memoryview]) -> int:
        """Read the beginning of an object into existing memory; return the object's size."""
        wanted_bytes = sum(len(buffer) for buffer in buffers)

        def read(response: Any) -> int | _Large:
            size = int(response["ContentLength"])
            if min(size, wanted_bytes) >= RANGED_BYTES:
                return _large(response)
            for buffer in buffers:
                if _fill(response["Body"], buffer) < len(buffer):
                    break
            response["Body"].close()
            return size

        found = self._read(key, read)
        if not isinstance(found, _Large):
            return found
        self._read_ranges(key, found, buffers)
        return found.bytes

    def _read_ranges(self, key: str, found: _Large, buffers: list[memoryview]) -> None:
        """Fill the buffers in order from an object's beginning, several ranges at a time.

        Raises:
            StoreError: The object was overwritten during the read.
        """
        ranges: list[tuple[int, memoryview]] = []
        first = 0
        for buffer in buffers:
            # A buffer may be longer than the remaining part of the object.
            end = max(0, min(len(buffer), found.bytes - first))
            ranges += [(first + at, buffer[at : min(at + PART_BYTES, end)]) for at in range(0, end, PART_BYTES)]
            first += len(buffer)

        def read_range(begin: int, memory: memoryview) -> None:
            last = begin + len(memory) - 1

            def read(response: Any) -> int:
                return _fill(response["Body"], memory)

            filled = self._read(key, read, Range=f"bytes={begin}-{last}", IfMatch=found.etag)
            if filled < len(memory):
                raise StoreError(f"{self._place(key)}: S3 did not return all of bytes {begin} to {last}; try again")

        with ThreadPoolExecutor(PART_THREADS, thread_name_prefix="checkpoint-range") as pool:
            try:
                results_of(pool, [pool.submit(read_range, begin, memory) for begin, memory in ranges])
            except AlreadyExistsError as error:
                raise StoreError(f"{self._place(key)}: overwritten during the read; try again") from error

    def _read(self, key: str, read: Callable[[Any], Content], **conditions: str) -> Content:
        """Call GetObject; also retry an interrupted body, which botocore does not."""
        for attempt in range(ATTEMPTS):
            with self._store_errors("s3:GetObject", key):
                response = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key, **conditions)
                try:
                    return read(response)
                except (HTTPClientError, BotoCoreError):
                    if attempt == ATTEMPTS - 1:
                        raise
            # Full jitter, because many readers may have been interrupted at the same time.
            longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**attempt)
            time.sleep(random.uniform(0, longest))  # noqa: S311
        raise AssertionError("the last attempt returns or raises")

    def copy_from(self, source: Backend, source_key: str, key: str) -> bool:
        """Call CopyObject, which copies objects of up to 5 GB inside S3; chunks are far smaller.

        Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html (2025-06).
        """
        if not isinstance(source, S3Backend):
            return False
        # S3 also returns NoSuchKey for a missing source.
        with source._store_errors("s3:GetObject", source_key):
            self._client.copy_object(
                Bucket=self._bucket,
                Key=self._prefix + key,
                CopySource={"Bucket": source._bucket, "Key": source._prefix + source_key},
            )
        return True

    def storage_classes(self, prefix: str) -> dict[str, StoredObject]:
        """Return the size and storage class of all objects whose keys begin with ``prefix``, in S3's order."""
        with self._store_errors("s3:ListBucket", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            return {
                item["Key"].removeprefix(self._prefix): StoredObject(item["Size"], item.get("StorageClass", "STANDARD"))
                for page in pages
                for item in page.get("Contents", [])
            }

    def change_storage_class(self, key: str, storage_class: str) -> None:
        """Copy an object onto itself in another storage class: a lifecycle transition, but selective and immediate.

        Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/sc-howtoset.html (2025-06).
        """
        with self._store_errors("s3:PutObject", key):
            self._client.copy_object(
                Bucket=self._bucket,
                Key=self._prefix + key,
                CopySource={"Bucket": self._bucket, "Key": self._prefix + key},
                StorageClass=storage_class,
            )

    def restore(self, key: str, days: int, tier: str) -> None:
        """Request a temporary readable copy of an archived object. S3 takes hours to make the copy.

        Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_RestoreObject.html (2025-06).
        """
        with self._store_errors("s3:RestoreObject", key):
            try:
                self._client.restore_object(
                    Bucket=self._bucket,
                    Key=self._prefix + key,
                    RestoreRequest={"Days": days, "GlacierJobParameters": {"Tier": tier}},
                )
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") != "RestoreAlreadyInProgress":
                    raise

    def keys(self, prefix: str, limit: int | None = None) -> list[str]:
        """Return keys; S3 lists in ascending order of UTF-8 bytes."""
        with self._store_errors("s3:ListBucket", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket,
                Prefix=self._prefix + prefix,
                PaginationConfig={"MaxItems": limit, "PageSize": None if limit is None else min(limit, MAX_PAGE)},
            )
            return [item["Key"].removeprefix(self._prefix) for page in pages for item in page.get("Contents", [])]

    def delete(self, keys: list[str]) -> None:
        """Call DeleteObjects, in batches."""
        for first in range(0, len(keys), DELETE_BATCH):
            batch = [{"Key": self._prefix + key} for key in keys[first : first + DELETE_BATCH]]
            with self._store_errors("s3:DeleteObject", keys[first]):
                response = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True})
            for error in response.get("Errors", []):
                raise self._failure("s3:DeleteObject", error["Key"].removeprefix(self._prefix), error["Code"])

    def _failure(self, action: str, key: str, code: str) -> StoreError:
        remedy = REMEDIES.get(code, "see the AWS documentation for this code, or try again").format(action=action)
        return StoreError(f"{self._place(key)}: {action} failed with {code}; {remedy}")

    def _place(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{key}"

    @contextmanager
    def _store_errors(self, action: str, key: str) -> Iterator[None]:
        """Convert boto3 errors to StoreError with a remedy."""
        try:
            yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "an unknown error")
            if code in ("NoSuchKey", "404"):
                raise NotFoundError(f"{self._place(key)}: does not exist") from error
            if code in ("PreconditionFailed", "412"):
                raise AlreadyExistsError(f"{self._place(key)}: already exists") from error
            if code in ("ConditionalRequestConflict", "409"):
                raise _ConflictError(
                    f"{self._place(key)}: another conditional write was in progress at every attempt; try again"
                ) from error
            raise self._failure(action, key, code) from error
        except NoCredentialsError as error:
            raise StoreError(f"{self._place(key)}: no AWS credentials found; provide a role or access keys") from error
        except (BotoCoreError, HTTPClientError) as error:
            raise StoreError(
                f"{self._place(key)}: {action} failed {ATTEMPTS} times ({error}); check the region, the "
                "route to S3 and the endpoint's policy"
            ) from error


def _large(response: Any) -> _Large:
    """Close a response without reading its body."""
    response["Body"].close()
    return _Large(int(response["ContentLength"]), response["ETag"])


def _fill(body: Any, memory: memoryview) -> int:
    """Read from a body until the memory is full or the body ends; return the number of bytes read."""
    filled = 0
    while filled < len(memory) and (count := body.readinto(memory[filled:])):
        filled += count
    return filled


class _ConflictError(StoreError):
    """Another conditional write to the key is in progress, so this write must be retried."""
