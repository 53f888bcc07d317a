"""Stored data that no run uses: old wheelhouses in the CDK's asset bucket, and old prepared data.

Both are only reported, because other tools delete them safely: `python -m training prepared --remove` removes the
commit before the data, and `cdk gc` knows the assets of all stacks.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from stacks.changes.effects.fixed_costs import S3_USD_PER_GIB_MONTH
from stacks.functions.zombie_watch.search import Findings, Gap, NotExamined, Zombie, collected, joined
from stacks.functions.zombie_watch.stack_names import StackName
from trainstack.account import Clients, NotDeployed, find, run_document

OLD_SECONDS = 30 * 86400.0
"""Age above which data that the current run does not use counts as forgotten. A rollback needs newer data."""
GIB = 2**30
PREPARED = "datasets/prepared/"
COMMIT = "prepared.json"
MAX_RECORD_BYTES = 2**20
MAX_BUNDLE_BYTES = 16 * 2**20
SMALLEST_WHEELHOUSE_BYTES = 2**20
MARKER = "image-requirements.txt"
"""A file that every wheelhouse contains, and no other asset."""
_ASSET = re.compile(r"\b[0-9a-f]{64}\.zip\b")
_BUCKET = re.compile(r"\bcdk-[a-z0-9]{1,10}-assets-[a-z0-9${}:A-Z-]+")
MISSING = ("NoSuchBucket", "NoSuchKey", "404")
"""The errors that mean that a bucket or object does not exist. `AccessDenied` does not mean that.

Source (2026-11): https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
"""


def stored(
    client: Clients, region: str, deployments: Mapping[str, Sequence[StackName]], now_unix_seconds: float
) -> Findings:
    """Return the forgotten wheelhouses and prepared data of deployments with a TrainingStack.

    Args:
        client: Clients of cloudformation, s3, ssm and sts.
        deployments: The training stacks of each deployment.
        now_unix_seconds: Time of the search.
    """
    parts = [
        collected(f"prepared data of {owner}", _prepared(client, owner, slots, now_unix_seconds))
        for owner, slots in sorted(deployments.items())
    ]
    stacks = [str(each) for _, slots in sorted(deployments.items()) for each in slots]
    return joined([*parts, collected("wheelhouses", _wheelhouses(client, region, stacks, now_unix_seconds))])


def _prepared(client: Clients, owner: str, stacks: Sequence[StackName], now: float) -> Iterator[Zombie]:
    """Prepared data with other inputs than those of the fleets' runs, or with an older result of the same inputs."""
    s3, problems = client("s3"), list[str]()
    try:
        slots = [find(client, stack.fleet) for stack in stacks]
    except NotDeployed as error:  # the stack is being created or deleted, or has failed
        raise NotExamined(str(error)) from error
    runs = [run_document(client, slot, problems) for slot in slots]
    if problems:
        raise NotExamined("; ".join(problems))
    datasets: dict[str, tuple[float, dict[str, Any]]] = {}
    sizes: dict[str, int] = {}
    bucket = slots[0].dataset_bucket
    try:
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=PREPARED):
            for item in page.get("Contents", []):
                digest, _, file = item["Key"].removeprefix(PREPARED).partition("/")
                sizes[digest] = sizes.get(digest, 0) + item["Size"]
                if file == COMMIT:
                    datasets[digest] = (item["LastModified"].timestamp(), _record(s3, bucket, item["Key"]))
    except ClientError as error:
        if error.response["Error"]["Code"] not in MISSING:
            raise
        return
    prepares = [run.prepare for run in runs if run is not None and run.prepare is not None]
    used, newest = set[str](), set[str]()
    for one in prepares:
        wanted = (one.function, one.source, dict(one.options))
        made = {each: at for each, (at, record) in datasets.items() if _inputs(record) == wanted}
        used |= made.keys()
        newest |= {max(made, key=made.__getitem__)} if made else set()
    for digest, (at, _) in sorted(datasets.items()):
        if digest in newest or now - at < OLD_SECONDS:
            continue
        reason = "a newer result exists" if digest in used else "the current run has other inputs"
        remedy = f"python -m training prepared s3://{bucket}/datasets --remove {digest}"
        usd = sizes[digest] / GIB * S3_USD_PER_GIB_MONTH
        age = f"{(now - at) / 86400:.0f} days old, and {reason}"
        yield Zombie("prepared data", digest, owner, age, usd, remedy, None, has_data=True)


def _inputs(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record.get("function"), record.get("source"), record.get("options", {})


def _record(s3: Any, bucket: str, key: str) -> dict[str, Any]:
    """Return a commit, or an empty record if it is invalid. The nodes write it."""
    try:
        value = json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read(MAX_RECORD_BYTES))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _wheelhouses(client: Clients, region: str, stacks: Iterable[str], now: float) -> Iterator[Zombie | Gap]:
    """Wheelhouses in the CDK's asset bucket that the node bundle of no deployment names.

    All templates and node bundles must be readable: any of them may name the wheelhouse.
    """
    s3, buckets, used = client("s3"), set[str](), set[str]()
    account = client("sts").get_caller_identity()["Account"]
    for stack in stacks:
        text = json.dumps(client("cloudformation").get_template(StackName=stack)["TemplateBody"])
        text = text.replace("${AWS::AccountId}", account).replace("${AWS::Region}", region)
        own = {found.rstrip("-") for found in _BUCKET.findall(text)}
        buckets |= own
        assets = set(_ASSET.findall(text))
        used |= assets | {key for bucket in own for asset in assets for key in _named(s3, bucket, asset)}
    for bucket in sorted(buckets):
        try:
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
            items = [item for page in pages for item in page.get("Contents", [])]
        except ClientError as error:
            if error.response["Error"]["Code"] not in MISSING:
                yield Gap(f"wheelhouses in s3://{bucket}", str(error))
            continue
        for item in items:
            age = now - item["LastModified"].timestamp()
            is_candidate = item["Key"].endswith(".zip") and item["Size"] >= SMALLEST_WHEELHOUSE_BYTES
            if not is_candidate or item["Key"] in used or age < OLD_SECONDS:
                continue
            if MARKER in _names(Ranges(s3, bucket, item["Key"], item["Size"])):
                usd = item["Size"] / GIB * S3_USD_PER_GIB_MONTH
                reason = f"{age / 86400:.0f} days old, and no deployment in this region uses it"
                remedy = "npx cdk gc --unstable=gc --type s3"
                yield Zombie("wheelhouse", f"s3://{bucket}/{item['Key']}", "no deployment", reason, usd, remedy)


def _named(s3: Any, bucket: str, asset: str) -> list[str]:
    """Return the keys that a node bundle names; none if the asset does not exist or is not a node bundle."""
    try:
        answer = s3.get_object(Bucket=bucket, Key=asset)
        if answer["ContentLength"] > MAX_BUNDLE_BYTES:
            return []
        with zipfile.ZipFile(io.BytesIO(answer["Body"].read())) as bundle:
            names = [name for name in bundle.namelist() if name.rpartition("/")[2] == "wheelhouse.json"]
            return [key for name in names for key in _ASSET.findall(bundle.read(name).decode(errors="replace"))]
    except zipfile.BadZipFile:
        return []
    except ClientError as error:
        if error.response["Error"]["Code"] not in MISSING:
            raise
        return []


def _names(file: Ranges) -> list[str]:
    """Return the names in an archive, of which only the end is read."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except zipfile.BadZipFile:
        return []


class Ranges(io.RawIOBase):
    """An object in S3 as a file that reads only the requested ranges."""

    def __init__(self, s3: Any, bucket: str, key: str, size: int) -> None:
        self._s3, self._bucket, self._key, self._size = s3, bucket, key, size
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes from the position on."""
        end = self._size if size < 0 else min(self._size, self._position + size)
        if self._position >= end:
            return b""
        span = f"bytes={self._position}-{end - 1}"
        content: bytes = self._s3.get_object(Bucket=self._bucket, Key=self._key, Range=span)["Body"].read()
        self._position += len(content)
        return content
