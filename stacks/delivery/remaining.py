"""The resources that remain after a deployment's billed stacks are deleted, with their monthly prices.

The prices are the list prices in `stacks.changes.effects.fixed_costs`. S3 and snapshot prices are upper bounds: objects
can be in a cheaper storage class, and a snapshot contains only blocks that were written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.exceptions import ClientError

from bootstrap.documents import COPY_TAG, SNAPSHOTS_TAG
from stacks.changes.effects.fixed_costs import (
    ECR_USD_PER_GB_MONTH,
    KEY_USD_PER_MONTH,
    S3_USD_PER_GIB_MONTH,
    SNAPSHOT_USD_PER_GIB_MONTH,
    lustre_usd_per_month,
    volume_usd_per_month,
)
from stacks.delivery.failed_create import describe, resources

GIB = 2**30


@dataclass(frozen=True)
class Remaining:
    """A resource that remains. `usd_per_month` is None if the price is unknown; `detail` contains the reason."""

    kind: str
    id: str
    detail: str
    usd_per_month: float | None

    def __str__(self) -> str:
        """Return the resource as one line."""
        usd = "price unknown" if self.usd_per_month is None else f"{self.usd_per_month:.2f} USD per month"
        return f"{self.kind:<12} {self.id:<64} {usd:>24}  {self.detail}"


def remaining(session: boto3.Session, deployment: str) -> list[Remaining]:
    """Return the billed resources in a deployment's StorageStack, its snapshots, and the copies of its volumes."""
    stack = f"{deployment}-StorageStack"
    cloudformation = session.client("cloudformation")
    held = [] if describe(cloudformation, stack) is None else resources(cloudformation, stack)
    found = [
        one
        for resource in held
        if resource["ResourceType"] in _PRICED and not resource["ResourceStatus"].startswith("DELETE_COMPLETE")
        for one in _priced(session, resource)
    ]
    ec2 = session.client("ec2")
    volumes = [each["PhysicalResourceId"] for each in held if each["ResourceType"] == "AWS::EC2::Volume"]
    return [*found, *_snapshots(ec2, deployment), *_copies(ec2, volumes)]


def _priced(session: boto3.Session, resource: Mapping[str, Any]) -> Iterator[Remaining]:
    kind, price = _PRICED[resource["ResourceType"]]
    physical_id = str(resource["PhysicalResourceId"])
    try:
        detail, usd = price(session, physical_id)
    except ClientError as error:
        yield Remaining(kind, physical_id, str(error), None)
    else:
        yield Remaining(kind, physical_id, detail, usd)


def _bucket(session: boto3.Session, bucket: str) -> tuple[str, float]:
    sizes = [
        item["Size"]
        for page in session.client("s3").get_paginator("list_object_versions").paginate(Bucket=bucket)
        for item in page.get("Versions", [])
    ]
    gib = sum(sizes) / GIB
    return f"{len(sizes)} objects, {gib:.1f} GiB, at most", gib * S3_USD_PER_GIB_MONTH


def _key(_: boto3.Session, key: str) -> tuple[str, float]:
    return "decrypts the data; the price rises by 1 USD with each of its first two yearly rotations", KEY_USD_PER_MONTH


def _volume(session: boto3.Session, volume: str) -> tuple[str, float]:
    return _volume_price(session.client("ec2").describe_volumes(VolumeIds=[volume])["Volumes"][0])


def _volume_price(volume: Mapping[str, Any]) -> tuple[str, float]:
    return f"{volume['Size']} GiB, {volume['VolumeType']}, {volume['State']}", volume_usd_per_month(volume)


def _file_system(session: boto3.Session, file_system: str) -> tuple[str, float]:
    (described,) = session.client("fsx").describe_file_systems(FileSystemIds=[file_system])["FileSystems"]
    return f"{described['StorageCapacity']} GiB, Lustre, {described['Lifecycle']}", lustre_usd_per_month(described)


def _repository(session: boto3.Session, repository: str) -> tuple[str, float]:
    pages = session.client("ecr").get_paginator("describe_images").paginate(repositoryName=repository)
    sizes = [one["imageSizeInBytes"] for page in pages for one in page["imageDetails"]]
    gb = sum(sizes) / 10**9
    return f"{len(sizes)} images, {gb:.1f} GB, at most; images share layers", gb * ECR_USD_PER_GB_MONTH


def _snapshots(ec2: Any, deployment: str) -> Iterator[Remaining]:
    filters = [{"Name": f"tag:{SNAPSHOTS_TAG}", "Values": [deployment]}]
    for page in ec2.get_paginator("describe_snapshots").paginate(OwnerIds=["self"], Filters=filters):
        for one in page["Snapshots"]:
            detail = f"of a volume of {one['VolumeSize']} GiB, at most"
            yield Remaining("snapshot", one["SnapshotId"], detail, one["VolumeSize"] * SNAPSHOT_USD_PER_GIB_MONTH)


def _copies(ec2: Any, volumes: Sequence[str]) -> Iterator[Remaining]:
    if not volumes:
        return
    filters = [{"Name": f"tag:{COPY_TAG}", "Values": list(volumes)}]
    for page in ec2.get_paginator("describe_volumes").paginate(Filters=filters):
        for one in page["Volumes"]:
            detail, usd = _volume_price(one)
            yield Remaining("volume copy", one["VolumeId"], detail, usd)


_PRICED: Mapping[str, tuple[str, Callable[[boto3.Session, str], tuple[str, float]]]] = {
    "AWS::S3::Bucket": ("bucket", _bucket),
    "AWS::KMS::Key": ("key", _key),
    "AWS::EC2::Volume": ("volume", _volume),
    "AWS::FSx::FileSystem": ("file system", _file_system),
    "AWS::ECR::Repository": ("images", _repository),
}
"""The billed resource types in StorageStack: the name, and a function that returns the description and the price."""
