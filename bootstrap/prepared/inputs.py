"""What prepared data are made from, and the digest that names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from bootstrap.document_decoding import canonical_digest
from bootstrap.documents import Prepare
from bootstrap.errors import LastingError

FORMAT = 1
"""Counted up when the same inputs come to be prepared in another way."""


@dataclass(frozen=True)
class SourceObject:
    """An object below the source; `name` is relative to it."""

    name: str
    bytes: int
    etag: str


def source_objects(s3: Any, bucket: str, source: str) -> tuple[SourceObject, ...]:
    """List what is below `source`, in the order of the names; left out: what marks a folder.

    Raises:
        LastingError: There is nothing, or a name that cannot be that of a file.
        ClientError, BotoCoreError: S3 does not answer.
    """
    prefix = f"{source}/"
    found: list[SourceObject] = []
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            name = item["Key"][len(prefix) :]
            if name and not name.endswith("/"):
                found.append(SourceObject(name, int(item["Size"]), str(item["ETag"])))
    if not found:
        raise LastingError(
            f"training.prepare.source: {source}: there is no object below s3://{bucket}/{prefix}",
            remedy=f"put the raw files there: aws s3 cp --recursive DIR s3://{bucket}/{prefix}; or correct the name",
        )
    strange = [each.name for each in found if not set(each.name.split("/")).isdisjoint({"", ".", ".."})]
    if strange:
        raise LastingError(
            f"s3://{bucket}/{prefix}: cannot be file names: {', '.join(strange[:5])}", remedy="rename these objects"
        )
    return tuple(found)


def prepared_digest(code: str, prepare: Prepare, objects: Sequence[SourceObject]) -> str:
    """Return the digest of all that the prepared data depend on, 64 hexadecimal digits."""
    inputs = [FORMAT, code, prepare.function, dict(prepare.options), [astuple(each) for each in objects]]
    return canonical_digest(inputs)
