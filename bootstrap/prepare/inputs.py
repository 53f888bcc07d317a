"""The inputs of data preparation, and the digest that identifies its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from bootstrap.documents import Prepare
from bootstrap.documents.decoding import canonical_digest
from bootstrap.errors import PermanentError

FORMAT = 1
"""Part of the digest. Increase it when the same inputs produce a different result."""


MAX_SOURCE_OBJECTS = 500_000
"""Maximum number of source objects. Listing them takes 500 requests, and each node keeps the list in memory."""


@dataclass(frozen=True, slots=True)
class SourceObject:
    """An object under the source prefix. `name` is relative to the prefix."""

    name: str
    bytes: int
    etag: str


def source_objects(
    s3: Any, bucket: str, source: str, on_page: Callable[[], None] = lambda: None
) -> tuple[SourceObject, ...]:
    """Return the objects under `source`, sorted by name, without directory markers.

    Args:
        s3: boto3 S3 client.
        bucket: The dataset bucket.
        source: The prefix of the objects, without a trailing slash.
        on_page: Called after each page of at most 1,000 objects.

    Raises:
        PermanentError: There are no objects, more than `MAX_SOURCE_OBJECTS`, or a name is not a valid relative path.
        ClientError, BotoCoreError: S3 did not respond.
    """
    prefix = f"{source}/"
    found: list[SourceObject] = []
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            name = item["Key"][len(prefix) :]
            if name and not name.endswith("/"):
                found.append(SourceObject(name, int(item["Size"]), str(item["ETag"])))
        if len(found) > MAX_SOURCE_OBJECTS:
            raise PermanentError(
                f"training.prepare.source: s3://{bucket}/{prefix}: has more than {MAX_SOURCE_OBJECTS} objects",
                remedy="combine small files into archives, or choose a prefix with fewer objects",
            )
        on_page()
    if not found:
        raise PermanentError(
            f"training.prepare.source: {source}: no objects under s3://{bucket}/{prefix}",
            remedy=f"upload the raw files: aws s3 cp --recursive DIR s3://{bucket}/{prefix}; or correct the prefix",
        )
    invalid = [each.name for each in found if not set(each.name.split("/")).isdisjoint({"", ".", ".."})]
    if invalid:
        raise PermanentError(
            f"s3://{bucket}/{prefix}: not valid as file names: {', '.join(invalid[:5])}", remedy="rename these objects"
        )
    return tuple(found)


def prepared_digest(code: str, prepare: Prepare, objects: Sequence[SourceObject]) -> str:
    """Return the digest of all inputs to the prepared data, as 64 hexadecimal digits."""
    inputs = [FORMAT, code, prepare.function, dict(prepare.options), [astuple(each) for each in objects]]
    return canonical_digest(inputs)
