"""An S3 bucket as a checkpoint store. Every request is bounded in time and retries, and fails in words.

The role needs s3:ListBucket on the bucket and s3:GetObject, s3:PutObject, s3:DeleteObject on the prefix, and on a
bucket with a customer-managed key kms:GenerateDataKey and kms:Decrypt.
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

from training.checkpoint.backend import Backend
from training.checkpoint.parallel import results_of
from training.errors import AlreadyExistsError, NotFoundError, StoreError

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_SECONDS = 5
READ_TIMEOUT_SECONDS = 20
ATTEMPTS = 10
"""With botocore's standard back-off a request gives up after some 20 s of errors, two minutes of throttling, or, at the
very worst, four minutes of silence: longer than a hiccup of S3, shorter than anyone would wait in vain.
Source: https://docs.aws.amazon.com/boto3/latest/guide/retries.html (2025-06); botocore 1.44, retries/standard.py."""
CONNECTIONS = 32
CONFLICT_ATTEMPTS = 20
CONFLICT_PAUSE_SECONDS = 0.25
DELETE_BATCH = 1000
"""Most keys in one DeleteObjects request.
Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html (2025-06)."""

MULTIPART_BYTES = 64 * 1024 * 1024
"""Objects from this size on are uploaded in parts, so that a failure costs a part. Chunks are smaller than that."""
RANGED_BYTES = 32 * 1024 * 1024
"""Objects from this size on are read in ranges, several at a time: one connection carries some 90 MB/s. Chunks of this
package's writers are smaller, and are read several at a time themselves."""
PART_BYTES = 16 * 1024 * 1024
"""Of an upload in parts, and of a range. S3 advises 8 to 16 MB.
Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html (2025-06)."""
PART_THREADS = 4
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

REMEDIES = {
    "AccessDenied": "allow {action} there in the policies of role, bucket and endpoint, and the use of its key",
    "NoSuchBucket": "create the bucket, or correct the URL",
    "InvalidAccessKeyId": "give this process valid credentials",
    "SignatureDoesNotMatch": "give this process valid credentials",
    "ExpiredToken": "refresh this process's credentials",
    "InvalidObjectState": "it is in an archive: `python -m training checkpoint restore` has it made readable, in hours",
    "RequestTimeTooSkewed": "set this machine's clock",
}

Content = TypeVar("Content")


class StoredObject(NamedTuple):
    """Size and storage class of an object."""

    bytes: int
    storage_class: str


class _Large(NamedTuple):
    """An object that is to be read in ranges, all of them of the same version."""

    bytes: int
    etag: str


class S3Backend:
    """Objects are S3 objects under a prefix; see :class:`training.checkpoint.backend.Backend`.

    Args:
        bucket: its name.
        prefix: without slashes at its ends; may be empty.
        client: a boto3 S3 client; by default one from the environment's region, endpoint and credentials.
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
                # What is read has a stronger hash than S3's; what is written is checked by S3, as botocore does.
                response_checksum_validation="when_required",
            ),
        )

    def put(self, key: str, content: bytes) -> None:
        """PutObject; a large object in parts."""
        with self._in_words("s3:PutObject", key):
            if len(content) >= MULTIPART_BYTES:
                self._put_parts(self._prefix + key, content)
            else:
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=content)

    def _put_parts(self, key: str, content: bytes) -> None:
        """CreateMultipartUpload, UploadPart, CompleteMultipartUpload; what failed leaves no parts that cost money."""
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
            self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        except BaseException:
            try:
                self._client.abort_multipart_upload(**upload)
            except (BotoCoreError, ClientError, HTTPClientError) as error:
                # What is to be told is why the upload failed; a lifecycle rule removes the parts in the end.
                logger.warning("s3://%s/%s: the parts of a failed upload are left: %s", self._bucket, key, error)
            raise

    def create(self, key: str, content: bytes) -> None:
        """PutObject with If-None-Match; 409 means that another such write is under way, and asks to be repeated.

        Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html (2025-06).
        """
        for attempt in range(CONFLICT_ATTEMPTS):
            try:
                with self._in_words("s3:PutObject", key):
                    self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=content, IfNoneMatch="*")
                return
            except _ConflictError:
                if attempt == CONFLICT_ATTEMPTS - 1:
                    raise
                time.sleep(CONFLICT_PAUSE_SECONDS * random.uniform(0.5, 1.0))  # noqa: S311

    def get(self, key: str) -> bytes:
        """GetObject; of a large object in ranges."""

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
        """GetObject of ``size`` bytes from ``first`` on, or of fewer at the end of the object."""

        def read(response: Any) -> bytes:
            body: bytes = response["Body"].read()
            return body

        return self._read(key, read, Range=f"bytes={first}-{first + size - 1}")

    def read_into(self, key: str, buffers: list[memoryview]) -> int:
        """GetObject, its beginning straight to memory that is there; return the object's size."""

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
        """Fill the buffers, one after another, from the beginning of an object, several ranges at a time.

        Raises:
            StoreError: the object was overwritten meanwhile.
        """
        ranges: list[tuple[int, memoryview]] = []
        first = 0
        for buffer in buffers:
            # A buffer may be longer than what there is for it.
            end = max(0, min(len(buffer), found.bytes - first))
            ranges += [(first + at, buffer[at : min(at + PART_BYTES, end)]) for at in range(0, end, PART_BYTES)]
            first += len(buffer)

        def read_range(begin: int, memory: memoryview) -> None:
            last = begin + len(memory) - 1

            def read(response: Any) -> int:
                return _fill(response["Body"], memory)

            filled = self._read(key, read, Range=f"bytes={begin}-{last}", IfMatch=found.etag)
            if filled < len(memory):
                raise StoreError(f"{self._place(key)}: bytes {begin} to {last} are not what was asked for; try again")

        with ThreadPoolExecutor(PART_THREADS, thread_name_prefix="checkpoint-range") as pool:
            try:
                results_of(pool, [pool.submit(read_range, begin, memory) for begin, memory in ranges])
            except AlreadyExistsError as error:
                raise StoreError(f"{self._place(key)}: was overwritten while it was read; try again") from error

    def _read(self, key: str, read: Callable[[Any], Content], **conditions: str) -> Content:
        """Ask again for a body that breaks off, which botocore's own retries do not cover."""
        for attempt in range(ATTEMPTS):
            with self._in_words("s3:GetObject", key):
                response = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key, **conditions)
                try:
                    return read(response)
                except (HTTPClientError, BotoCoreError):
                    if attempt == ATTEMPTS - 1:
                        raise
            # Full jitter: many readers may have been cut off at once.
            longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**attempt)
            time.sleep(random.uniform(0, longest))  # noqa: S311
        raise AssertionError("the last attempt returns or raises")

    def copy_from(self, source: Backend, source_key: str, key: str) -> bool:
        """CopyObject, inside S3; objects of up to 5 GB, which chunks are far below.

        Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html (2025-06).
        """
        if not isinstance(source, S3Backend):
            return False
        # A source that is missing is answered with NoSuchKey too.
        with source._in_words("s3:GetObject", source_key):
            self._client.copy_object(
                Bucket=self._bucket,
                Key=self._prefix + key,
                CopySource={"Bucket": source._bucket, "Key": source._prefix + source_key},
            )
        return True

    def storage_classes(self, prefix: str) -> dict[str, StoredObject]:
        """ListObjectsV2: size and storage class of the objects whose keys begin with ``prefix``."""
        with self._in_words("s3:ListBucket", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            return {
                item["Key"].removeprefix(self._prefix): StoredObject(item["Size"], item.get("StorageClass", "STANDARD"))
                for page in pages
                for item in page.get("Contents", [])
            }

    def change_storage_class(self, key: str, storage_class: str) -> None:
        """CopyObject onto itself: what lifecycle rules do, but for chosen objects and at once.

        Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/sc-howtoset.html (2025-06).
        """
        with self._in_words("s3:PutObject", key):
            self._client.copy_object(
                Bucket=self._bucket,
                Key=self._prefix + key,
                CopySource={"Bucket": self._bucket, "Key": self._prefix + key},
                StorageClass=storage_class,
            )

    def restore(self, key: str, days: int, tier: str) -> None:
        """RestoreObject: have a readable copy of an archived object made, for some days; it takes hours.

        Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_RestoreObject.html (2025-06).
        """
        with self._in_words("s3:RestoreObject", key):
            try:
                self._client.restore_object(
                    Bucket=self._bucket,
                    Key=self._prefix + key,
                    RestoreRequest={"Days": days, "GlacierJobParameters": {"Tier": tier}},
                )
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") != "RestoreAlreadyInProgress":
                    raise

    def keys(self, prefix: str) -> list[str]:
        """ListObjectsV2, all pages; S3 lists in ascending order of UTF-8 bytes."""
        with self._in_words("s3:ListBucket", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            return [item["Key"].removeprefix(self._prefix) for page in pages for item in page.get("Contents", [])]

    def delete(self, keys: list[str]) -> None:
        """DeleteObjects, in batches."""
        for first in range(0, len(keys), DELETE_BATCH):
            batch = [{"Key": self._prefix + key} for key in keys[first : first + DELETE_BATCH]]
            with self._in_words("s3:DeleteObject", keys[first]):
                response = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True})
            for error in response.get("Errors", []):
                raise self._failure("s3:DeleteObject", error["Key"].removeprefix(self._prefix), error["Code"])

    def _failure(self, action: str, key: str, code: str) -> StoreError:
        remedy = REMEDIES.get(code, "see the AWS documentation of this code, or try again").format(action=action)
        return StoreError(f"{self._place(key)}: {action} was answered with {code}; {remedy}")

    def _place(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{key}"

    @contextmanager
    def _in_words(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "an unknown error")
            if code in ("NoSuchKey", "404"):
                raise NotFoundError(f"{self._place(key)}: does not exist") from error
            if code in ("PreconditionFailed", "412"):
                raise AlreadyExistsError(f"{self._place(key)}: exists already") from error
            if code in ("ConditionalRequestConflict", "409"):
                raise _ConflictError(f"{self._place(key)}: conditional writes kept conflicting; try again") from error
            raise self._failure(action, key, code) from error
        except NoCredentialsError as error:
            raise StoreError(f"{self._place(key)}: no AWS credentials; give this process a role or keys") from error
        except (BotoCoreError, HTTPClientError) as error:
            raise StoreError(
                f"{self._place(key)}: {action} did not succeed in {ATTEMPTS} attempts ({error}); check the region, the "
                "route to S3 and the endpoint's policy"
            ) from error


def _large(response: Any) -> _Large:
    """Leave the body of an answer unread."""
    response["Body"].close()
    return _Large(int(response["ContentLength"]), response["ETag"])


def _fill(body: Any, memory: memoryview) -> int:
    """Read from a body until memory is full or there is no more; return the number of bytes read."""
    filled = 0
    while filled < len(memory) and (count := body.readinto(memory[filled:])):
        filled += count
    return filled


class _ConflictError(StoreError):
    """Another conditional write to the key is under way; the service asks to try again."""
