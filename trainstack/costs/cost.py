"""Costs of a deployment: its instances from the ledger, and estimates for its other resources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from botocore.exceptions import ClientError

from bootstrap.documents import SNAPSHOTS_TAG
from stacks.changes.effects.fixed_costs import (
    PRICES_DATE,
    PRICES_REGION,
    S3_USD_PER_GIB_MONTH,
    SNAPSHOT_USD_PER_GIB_MONTH,
    fixed_usd_per_month,
)
from stacks.changes.templates.template_set import StackTemplate
from stacks.functions.run_controller.ledger import documents
from stacks.functions.run_controller.ledger.documents import Entry
from stacks.functions.run_controller.ledger.machines import Charge
from stacks.functions.run_controller.records import InvalidRecord
from stacks.functions.zombie_watch.stack_names import TRAINING_STACK, StackName
from trainstack.account import DEPLOYMENT_TAG, Clients, Deployment, Observation, get_template, object_keys

By = Literal["run", "node", "zone", "market", "day"]
SHARED_STACKS = ("NetworkStack", "StorageStack", "ObservabilityStack")
REQUEST_USD = 0.01
"""Price of a Cost Explorer request. Source (2026-11): https://aws.amazon.com/aws-cost-management/pricing/"""
COST_EXPLORER_REGION = "us-east-1"
COMPUTE = "Amazon Elastic Compute Cloud - Compute"
ESTIMATE_SOURCE = f"list prices of {PRICES_REGION}, {PRICES_DATE}"

_KEYS: Mapping[By, Callable[[Entry], str]] = {
    "run": lambda entry: entry.run or "no run",
    "node": lambda entry: f"{entry.instance_id} {entry.instance_type or 'unknown type'}",
    "zone": lambda entry: entry.zone or "unknown zone",
    "market": lambda entry: entry.market or "unknown market",
    "day": lambda entry: f"{datetime.fromtimestamp(entry.hour_unix_seconds, UTC):%Y-%m-%d}",
}


@dataclass(frozen=True)
class Sum:
    """The sum over a group of ledger entries."""

    label: str
    instances: int
    charge: Charge


@dataclass(frozen=True)
class Estimate:
    """The monthly price of resources other than instances, with its source. None: unknown."""

    label: str
    usd_per_month: float | None
    source: str


@dataclass(frozen=True)
class Efficiency:
    """Training progress relative to the current run's costs. None: the trainer has not reported enough data yet.

    Attributes:
        goodput: Share of the billed time that all steps so far would take at the most recent speed.
    """

    usd_per_million_tokens: float | None
    goodput: float | None


def entries(client: Clients, deployment: Deployment) -> tuple[list[Entry], list[str]]:
    """Return the ledger's entries, and a message for each object that cannot be read.

    Raises:
        botocore.exceptions.ClientError: AWS rejected a call.
    """
    return fleet_entries(client("s3"), deployment.control_bucket, deployment.name)


def fleet_entries(
    s3: Any, bucket: str, fleet: str, hours_unix_seconds: tuple[float, float] | None = None
) -> tuple[list[Entry], list[str]]:
    """Return the entries of a fleet's ledger, and a message for each object that cannot be read.

    Args:
        s3: A boto3 client.
        bucket: The deployment's control bucket.
        fleet: Name of the fleet.
        hours_unix_seconds: Times in the first and in the last hour; None: all hours.

    Raises:
        botocore.exceptions.ClientError: AWS rejected a call.
    """
    keys = list(object_keys(s3, bucket, documents.hours_prefix(fleet)))
    if hours_unix_seconds is not None:
        first, last = (documents.hour_key(fleet, int(each)) for each in hours_unix_seconds)
        keys = [key for key in keys if first <= key <= last]
    problems: list[str] = []

    def read(key: str) -> list[Entry]:
        body = s3.get_object(Bucket=bucket, Key=key)["Body"].read(documents.MAX_BYTES + 1)
        try:
            return documents.entries_from_bytes(body)
        except InvalidRecord as error:
            problems.append(f"s3://{bucket}/{key}: {error}; its hour is missing from the sums")
            return []

    with ThreadPoolExecutor(16) as pool:
        found = [entry for each in pool.map(read, keys) for entry in each]
    return found, problems


def sums(found: Iterable[Entry], by: By) -> list[Sum]:
    """Group the entries by a key, and return the sums, sorted by day or else by descending cost."""
    groups: dict[str, list[Entry]] = {}
    for entry in found:
        groups.setdefault(_KEYS[by](entry), []).append(entry)
    result = [summed(label, group) for label, group in groups.items()]
    return sorted(result, key=lambda one: (one.label if by == "day" else "", -one.charge.usd, one.label))


def summed(label: str, group: Sequence[Entry]) -> Sum:
    """Return the sum over a group of entries."""
    charge = sum((entry.charge for entry in group), Charge())
    return Sum(label, len({entry.instance_id for entry in group}), charge)


def efficiency(seen: Observation, spent: Charge) -> Efficiency:
    """Return the current run's cost per million tokens and its goodput."""
    report, controller = seen.status, seen.controller
    if report is None or not report.step or report.step_seconds is None:
        return Efficiency(None, None)
    price = None
    if report.tokens_per_second:
        tokens = report.step * report.step_seconds * report.tokens_per_second
        price = spent.usd / (tokens / 1e6) if tokens else None
    spending = None if controller is None else controller.spending
    hours = 0.0 if spending is None else spending.run_hours
    goodput = min(1.0, report.step * report.step_seconds / (hours * 3600)) if hours else None
    return Efficiency(price, goodput)


def estimates(client: Clients, deployment: Deployment, now_unix_seconds: float) -> list[Estimate]:
    """Return the monthly prices of the deployment's other resources, from its templates, snapshots and buckets.

    The first slot has the prices of everything that the slots share.

    Raises:
        botocore.exceptions.ClientError: AWS rejected a call.
    """
    found = fixed_usd_per_month(templates(client, deployment, shared=not deployment.slot))
    result = [Estimate(label, usd, f"templates at {ESTIMATE_SOURCE}") for label, usd in sorted(found.items())]
    if deployment.slot:
        return result
    gib = 0
    owned: dict[str, Any] = {
        "OwnerIds": ["self"],
        "Filters": [{"Name": f"tag:{SNAPSHOTS_TAG}", "Values": [deployment.name]}],
    }
    for page in client("ec2").get_paginator("describe_snapshots").paginate(**owned):
        gib += sum(item["VolumeSize"] for item in page["Snapshots"])
    if gib:
        source = f"upper bound: volume sizes at {ESTIMATE_SOURCE}"
        result.append(Estimate("snapshots", gib * SNAPSHOT_USD_PER_GIB_MONTH, source))
    for bucket in (deployment.checkpoint_bucket, deployment.control_bucket):
        size = _stored_gib(client, bucket, now_unix_seconds)
        source = "CloudWatch has no size yet: S3 reports it once a day"
        if size is not None:
            source = f"{size:,.1f} GiB, reported by S3 once a day, at {ESTIMATE_SOURCE}"
        result.append(Estimate(f"bucket {bucket}", None if size is None else size * S3_USD_PER_GIB_MONTH, source))
    return result


def templates(client: Clients, deployment: Deployment, *, shared: bool = True) -> dict[str, StackTemplate]:
    """Return the templates of a slot's stack and, with `shared`, of the shared stacks that exist, by construct id.

    Raises:
        botocore.exceptions.ClientError: AWS rejected a call.
    """
    common = [StackName(deployment.owner, kind) for kind in SHARED_STACKS if shared]
    return read_templates(client, [*common, StackName(deployment.owner, TRAINING_STACK, deployment.slot)])


def read_templates(client: Clients, names: Iterable[StackName], region: str = "") -> dict[str, StackTemplate]:
    """Return the templates of the stacks that exist, by construct id. `region`: the stacks' region.

    Raises:
        botocore.exceptions.ClientError: AWS rejected a call.
    """
    found = {}
    for name in names:
        try:
            template = get_template(client, str(name))
        except ClientError as error:
            if error.response["Error"]["Code"] != "ValidationError":
                raise
            continue  # the stack does not exist, so it costs nothing
        found[name.construct] = StackTemplate(name.construct, str(name), template, f"aws:///{region}")
    return found


def _stored_gib(client: Clients, bucket: str, now_unix_seconds: float) -> float | None:
    """Return a bucket's size. Source (2026-11):
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/metrics-dimensions.html
    """
    now = datetime.fromtimestamp(now_unix_seconds, UTC)
    answer = client("cloudwatch").get_metric_statistics(
        Namespace="AWS/S3",
        MetricName="BucketSizeBytes",
        Dimensions=[{"Name": "BucketName", "Value": bucket}, {"Name": "StorageType", "Value": "StandardStorage"}],
        StartTime=now - timedelta(days=3),
        EndTime=now,
        Period=86400,
        Statistics=["Average"],
    )
    points = sorted(answer["Datapoints"], key=lambda point: point["Timestamp"])
    return float(points[-1]["Average"]) / 2**30 if points else None


@dataclass(frozen=True)
class Actual:
    """Costs with the deployment's tag by service, as reported by Cost Explorer, and the number of requests made."""

    usd: Mapping[str, float]
    requests: int


def actual(explorer: Any, name: str, first_unix_seconds: float, now_unix_seconds: float) -> Actual:
    """Request the costs with the deployment's tag from Cost Explorer. Each page is a request that costs REQUEST_USD.

    Raises:
        botocore.exceptions.ClientError: AWS rejected the call.
    """
    first = datetime.fromtimestamp(first_unix_seconds, UTC)
    end = datetime.fromtimestamp(now_unix_seconds, UTC) + timedelta(days=1)
    asked: dict[str, Any] = {
        "TimePeriod": {"Start": f"{first:%Y-%m-%d}", "End": f"{end:%Y-%m-%d}"},
        "Granularity": "DAILY",
        "Metrics": ["UnblendedCost"],
        "Filter": {"Tags": {"Key": DEPLOYMENT_TAG, "Values": [name]}},
        "GroupBy": [{"Type": "DIMENSION", "Key": "SERVICE"}],
    }
    found: dict[str, float] = {}
    requests = 0
    while True:
        page = explorer.get_cost_and_usage(**asked)
        requests += 1
        for day in page["ResultsByTime"]:
            for group in day.get("Groups", []):
                service = group["Keys"][0]
                found[service] = found.get(service, 0.0) + float(group["Metrics"]["UnblendedCost"]["Amount"])
        if not page.get("NextPageToken"):
            return Actual(found, requests)
        asked["NextPageToken"] = page["NextPageToken"]


def to_json(groups: Sequence[Sum]) -> list[dict[str, Any]]:
    """Return sums as JSON values."""
    return [{"label": one.label, "instances": one.instances, **asdict(one.charge)} for one in groups]


def lines(groups: Sequence[Sum], total: Sum) -> list[str]:
    """Return sums as aligned lines of text, with their total."""
    rows = [("", "instances", "hours", "USD", "on demand", "saved")]
    for one in (*groups, total):
        hours, usd, full = one.charge.seconds / 3600, one.charge.usd, one.charge.on_demand_usd
        saved = f"{1 - usd / full:.0%}" if full else "-"
        rows.append((one.label, str(one.instances), f"{hours:,.2f}", f"{usd:,.2f}", f"{full:,.2f}", saved))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(row[column].rjust(widths[column]) for column in range(1, 6))]).rstrip()
        for row in rows
    ]
