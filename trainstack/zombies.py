"""Finds billed resources that no run uses, by their deployment's tag and by references to them.

Nothing is deleted. If a deployment's stacks exist, its resources are reported only if nothing can use them any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from bootstrap.documents import COPY_TAG, SNAPSHOTS_TAG
from bootstrap.documents.object_keys import control_prefix
from stacks.capacity.catalogue import catalogue
from stacks.changes.effects.fixed_costs import HOURS_PER_MONTH, USD_PER_MONTH
from trainstack.account import DEPLOYMENT_TAG, Clients, find, run_document

BOOT_SECONDS = 3600.0
"""Age above which an instance without a heartbeat is no longer booting. The boot timeout is shorter."""
SILENT_SECONDS = 900.0
"""Heartbeat age above which the node's supervisor must have ended. Nodes write heartbeats every few seconds."""
IDLE_SECONDS = 3600.0
"""Age above which a detached volume copy or an unused capacity reservation is no longer waiting for an instance."""
MAX_HEARTBEAT_PAGES = 10
_STACKS = ("NetworkStack", "StorageStack", "TrainingStack")
_LIVE_REQUESTS = ("open", "active")

SERVICES = ("cloudformation", "ec2", "fsx", "s3", "ssm")
"""The services that a search calls."""


@dataclass(frozen=True)
class Zombie:
    """A resource without a run. `usd_per_month` is None if its price is unknown."""

    kind: str
    id: str
    deployment: str
    reason: str
    usd_per_month: float | None
    remedy: str

    def __str__(self) -> str:
        """Return the resource as one line."""
        price = "" if self.usd_per_month is None else f", {self.usd_per_month:,.2f} USD per month"
        return f"{self.kind} {self.id} of {self.deployment}: {self.reason}{price}\n  {self.remedy}"


@dataclass(frozen=True)
class _Search:
    """One region's clients, the kinds of stacks that each deployment has, and the time of the search."""

    client: Clients
    region: str
    stacks: Mapping[str, frozenset[str]]
    now_unix_seconds: float

    def has(self, deployment: str, stack: str) -> bool:
        return stack in self.stacks.get(deployment, ())

    def pages(self, call: str, key: str, **arguments: Any) -> Iterator[Mapping[str, Any]]:
        for page in self.client("ec2").get_paginator(call).paginate(**arguments):
            yield from page[key]

    def age_seconds(self, moment: Any) -> float:
        return float(self.now_unix_seconds - moment.timestamp())


def search(client: Clients, region: str, now_unix_seconds: float) -> list[Zombie]:
    """Return the region's resources without a run, grouped by kind. The clients of SERVICES must already exist.

    Raises:
        botocore.exceptions.ClientError: AWS rejected a call.
    """
    found: dict[str, set[str]] = {}
    for page in client("cloudformation").get_paginator("describe_stacks").paginate():
        for stack in page["Stacks"]:
            name, _, kind = stack["StackName"].rpartition("-")
            if kind in _STACKS:
                found.setdefault(name, set()).add(kind)
    seen = _Search(client, region, {name: frozenset(kinds) for name, kinds in found.items()}, now_unix_seconds)
    with ThreadPoolExecutor(8) as pool:
        return [zombie for each in pool.map(lambda kind: list(kind(seen)), KINDS) for zombie in each]


def _instances(seen: _Search) -> Iterator[Zombie]:
    """Instances whose TrainingStack does not exist, and instances whose supervisor has ended or never started."""
    live = [{"Name": "instance-state-name", "Values": ["pending", "running"]}, _tagged(DEPLOYMENT_TAG)]
    heard: dict[str, Mapping[str, float]] = {}
    for group in seen.pages("describe_instances", "Reservations", Filters=live):
        for one in group["Instances"]:
            owner, instance_id = _tag(one, DEPLOYMENT_TAG), one["InstanceId"]
            remedy = f"aws ec2 terminate-instances --region {seen.region} --instance-ids {instance_id}"
            purchase = "spot" if one.get("InstanceLifecycle") == "spot" else "on_demand"
            usd = catalogue().usd_per_hour(seen.region, one["InstanceType"], purchase)  # type: ignore[arg-type]
            usd = None if usd is None else usd * HOURS_PER_MONTH
            if not seen.has(owner, "TrainingStack"):
                yield Zombie("instance", instance_id, owner, "its TrainingStack does not exist", usd, remedy)
                continue
            if seen.age_seconds(one["LaunchTime"]) < BOOT_SECONDS:
                continue
            if owner not in heard:
                heard[owner] = _heartbeats(seen, owner)
            silent = seen.now_unix_seconds - heard[owner].get(instance_id, 0.0)
            if silent > SILENT_SECONDS:
                is_known = instance_id in heard[owner]
                reason = f"its last heartbeat is {silent / 60:.0f} min old" if is_known else "it never sent a heartbeat"
                yield Zombie("instance", instance_id, owner, reason, usd, remedy)


def _heartbeats(seen: _Search, deployment: str) -> Mapping[str, float]:
    """Return the times of the current run's heartbeats. Reads at most MAX_HEARTBEAT_PAGES pages."""
    found = find(seen.client, deployment)
    run = run_document(seen.client, found, [])
    if run is None:
        return {}
    prefix, times = f"{control_prefix(found.name, run.run)}heartbeats/", {}
    pages = seen.client("s3").get_paginator("list_objects_v2").paginate(Bucket=found.control_bucket, Prefix=prefix)
    for number, page in enumerate(pages, 1):
        for item in page.get("Contents", []):
            instance_id = item["Key"].removesuffix(".json").rpartition(":")[2]
            times[instance_id] = item["LastModified"].timestamp()
        if number == MAX_HEARTBEAT_PAGES:
            break
    return times


def _volumes(seen: _Search) -> Iterator[Zombie]:
    """Detached volumes whose StorageStack does not exist, and detached copies of a checkpoint volume."""
    detached = {"Name": "status", "Values": ["available"]}
    for tag in (DEPLOYMENT_TAG, COPY_TAG):
        for one in seen.pages("describe_volumes", "Volumes", Filters=[detached, _tagged(tag)]):
            owner, volume_id = _tag(one, DEPLOYMENT_TAG), one["VolumeId"]
            if tag == DEPLOYMENT_TAG and (_tag(one, COPY_TAG) or seen.has(owner, "StorageStack")):
                continue
            if tag == COPY_TAG and seen.age_seconds(one["CreateTime"]) < IDLE_SECONDS:
                continue
            reason = "a copy that no instance uses" if tag == COPY_TAG else "its StorageStack does not exist"
            usd = USD_PER_MONTH["AWS::EC2::Volume"][1](one)
            remedy = f"aws ec2 delete-volume --region {seen.region} --volume-id {volume_id}"
            yield Zombie("volume", volume_id, owner, reason, usd, remedy)


def _snapshots(seen: _Search) -> Iterator[Zombie]:
    """Snapshots of checkpoint volumes whose StorageStack does not exist."""
    owned: dict[str, Any] = {"OwnerIds": ["self"], "Filters": [_tagged(SNAPSHOTS_TAG)]}
    for one in seen.pages("describe_snapshots", "Snapshots", **owned):
        owner, snapshot_id = _tag(one, SNAPSHOTS_TAG), one["SnapshotId"]
        if not seen.has(owner, "StorageStack"):
            remedy = f"aws ec2 delete-snapshot --region {seen.region} --snapshot-id {snapshot_id}"
            yield Zombie("snapshot", snapshot_id, owner, "its StorageStack does not exist", None, remedy)


def _file_systems(seen: _Search) -> Iterator[Zombie]:
    """File systems whose StorageStack does not exist."""
    for page in seen.client("fsx").get_paginator("describe_file_systems").paginate():
        for one in page["FileSystems"]:
            owner, file_system_id = _tag(one, DEPLOYMENT_TAG), one["FileSystemId"]
            if owner and not seen.has(owner, "StorageStack"):
                usd = USD_PER_MONTH["AWS::FSx::FileSystem"][1](one)
                remedy = f"aws fsx delete-file-system --region {seen.region} --file-system-id {file_system_id}"
                yield Zombie("file system", file_system_id, owner, "its StorageStack does not exist", usd, remedy)


def _reservations(seen: _Search) -> Iterator[Zombie]:
    """Capacity reservations without a TrainingStack, or without any instance."""
    filters = [{"Name": "state", "Values": ["active"]}, _tagged(DEPLOYMENT_TAG)]
    for one in seen.pages("describe_capacity_reservations", "CapacityReservations", Filters=filters):
        owner, reservation_id = _tag(one, DEPLOYMENT_TAG), one["CapacityReservationId"]
        total = one["TotalInstanceCount"]
        is_idle = one["AvailableInstanceCount"] == total and seen.age_seconds(one["CreateDate"]) > IDLE_SECONDS
        if seen.has(owner, "TrainingStack") and not is_idle:
            continue
        orphaned = not seen.has(owner, "TrainingStack")
        reason = "its TrainingStack does not exist" if orphaned else f"none of its {total} instances is used"
        hourly = catalogue().usd_per_hour(seen.region, one["InstanceType"], "on_demand")
        usd = None if hourly is None else hourly * total * HOURS_PER_MONTH
        remedy = (
            f"aws ec2 cancel-capacity-reservation --region {seen.region} --capacity-reservation-id {reservation_id}"
            if orphaned
            else "edit capacity.market in the deployment file, and deploy"
        )
        yield Zombie("capacity reservation", reservation_id, owner, reason, usd, remedy)


def _addresses(seen: _Search) -> Iterator[Zombie]:
    """Elastic IP addresses that are not associated."""
    for one in seen.client("ec2").describe_addresses(Filters=[_tagged(DEPLOYMENT_TAG)])["Addresses"]:
        if "AssociationId" not in one:
            usd = USD_PER_MONTH["AWS::EC2::EIP"][1]({})
            remedy = f"aws ec2 release-address --region {seen.region} --allocation-id {one['AllocationId']}"
            owner = _tag(one, DEPLOYMENT_TAG)
            yield Zombie("Elastic IP address", one["AllocationId"], owner, "it is not associated", usd, remedy)


def _spot_requests(seen: _Search) -> Iterator[Zombie]:
    """Open or active spot requests whose TrainingStack does not exist: they launch further instances."""
    filters = [{"Name": "state", "Values": list(_LIVE_REQUESTS)}, _tagged(DEPLOYMENT_TAG)]
    for one in seen.pages("describe_spot_instance_requests", "SpotInstanceRequests", Filters=filters):
        owner, request_id = _tag(one, DEPLOYMENT_TAG), one["SpotInstanceRequestId"]
        if not seen.has(owner, "TrainingStack"):
            remedy = (
                f"aws ec2 cancel-spot-instance-requests --region {seen.region} --spot-instance-request-ids {request_id}"
            )
            yield Zombie("spot request", request_id, owner, "its TrainingStack does not exist", None, remedy)


def _endpoints(seen: _Search) -> Iterator[Zombie]:
    """Interface endpoints whose NetworkStack does not exist."""
    for one in seen.pages("describe_vpc_endpoints", "VpcEndpoints", Filters=[_tagged(DEPLOYMENT_TAG)]):
        owner, endpoint_id = _tag(one, DEPLOYMENT_TAG), one["VpcEndpointId"]
        if one.get("VpcEndpointType") == "Interface" and not seen.has(owner, "NetworkStack"):
            usd = USD_PER_MONTH["AWS::EC2::VPCEndpoint"][1](one)
            remedy = f"aws ec2 delete-vpc-endpoints --region {seen.region} --vpc-endpoint-ids {endpoint_id}"
            yield Zombie("VPC endpoint", endpoint_id, owner, "its NetworkStack does not exist", usd, remedy)


def _gateways(seen: _Search) -> Iterator[Zombie]:
    """NAT gateways whose deployment has no TrainingStack."""
    filters = [{"Name": "state", "Values": ["pending", "available"]}, _tagged(DEPLOYMENT_TAG)]
    for one in seen.pages("describe_nat_gateways", "NatGateways", Filters=filters):
        owner, gateway_id = _tag(one, DEPLOYMENT_TAG), one["NatGatewayId"]
        if not seen.has(owner, "TrainingStack"):
            usd = USD_PER_MONTH["AWS::EC2::NatGateway"][1]({})
            remedy = (
                _destroy(owner)
                if seen.has(owner, "NetworkStack")
                else (f"aws ec2 delete-nat-gateway --region {seen.region} --nat-gateway-id {gateway_id}")
            )
            yield Zombie("NAT gateway", gateway_id, owner, "its deployment has no TrainingStack", usd, remedy)


def _networks(seen: _Search) -> Iterator[Zombie]:
    """NetworkStacks, whose endpoints are billed, without a TrainingStack."""
    for owner, kinds in sorted(seen.stacks.items()):
        if "NetworkStack" in kinds and "TrainingStack" not in kinds:
            reason = "nothing trains in its network"
            yield Zombie("stack", f"{owner}-NetworkStack", owner, reason, None, _destroy(owner))


def _destroy(owner: str) -> str:
    return f"make destroy CONFIG=FILE, with the deployment file of {owner}"


def _tagged(key: str) -> dict[str, Any]:
    return {"Name": "tag-key", "Values": [key]}


def _tag(resource: Mapping[str, Any], key: str) -> str:
    tags: Iterable[Mapping[str, str]] = resource.get("Tags", [])
    return next((each["Value"] for each in tags if each["Key"] == key), "")


KINDS: tuple[Callable[[_Search], Iterator[Zombie]], ...] = (
    _instances,
    _volumes,
    _snapshots,
    _file_systems,
    _reservations,
    _addresses,
    _spot_requests,
    _endpoints,
    _gateways,
    _networks,
)
"""The searches, one for each kind of resource."""
