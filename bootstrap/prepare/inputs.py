"""The inputs of data preparation, and the digest that identifies its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from bootstrap.documents import Prepare
from bootstrap.documents.decoding import canonical_digest
from bootstrap.errors import PermanentError

FORMAT = 1
"""Part of the digest. Increase it when the same inputs produce a different result."""


@dataclass(frozen=True)
class SourceObject:
    """An object under the source prefix. `name` is relative to the prefix."""

    name: str
    bytes: int
    etag: str


def source_objects(s3: Any, bucket: str, source: str) -> tuple[SourceObject, ...]:
    """Return the objects under `source`, sorted by name, without directory markers.

    Raises:
        PermanentError: There are no objects, or a name is not a valid relative path.
        ClientError, BotoCoreError: S3 did not respond.
    """
    prefix = f"{source}/"
    found: list[SourceObject] = []
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            name = item["Key"][len(prefix) :]
            if name and not name.endswith("/"):
                found.append(SourceObject(name, int(item["Size"]), str(item["ETag"])))
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
