"""Finds billed resources that no run uses, by their deployment's tag and by references to them.

Nothing is deleted. If a deployment's stacks exist, its resources are reported only if nothing can use them anymore.
A failed call never counts as an empty answer: the findings name what could not be examined. This module imports only
the standard library and botocore, which the runtime of the Lambda function contains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from .stack_names import CLUSTER_STACKS, NODE_STACKS

DEPLOYMENT_TAG = "trainstack:deployment"
SNAPSHOTS_TAG = "trainstack:snapshots"
COPY_TAG = "trainstack:copy-of"
BOOT_SECONDS = 3600.0
"""Age above which an instance without a heartbeat is no longer booting. The boot timeout is shorter."""
SILENT_SECONDS = 900.0
"""Heartbeat age above which the node's supervisor must have ended. Nodes write heartbeats every few seconds."""
IDLE_SECONDS = 3600.0
"""Age above which a detached volume copy or an unused capacity reservation is no longer waiting for an instance."""
NO_NODES = "its deployment has no stack with nodes"
MAX_HEARTBEAT_PAGES = 10
SERVICES = ("cloudformation", "ec2", "fsx")
"""The services that a search calls."""
_LIVE_REQUESTS = ("open", "active")
_WORD = re.compile(r"(?<!^)(?=[A-Z])")

Clients = Callable[[str], Any]
"""Returns the boto3 client of a service, for one account and region."""
Heartbeats = Callable[[str], Mapping[str, float] | None]
"""Returns the heartbeat times of a deployment's instances in Unix seconds, or None if the caller does not know them.

Raises NotExamined if the heartbeats exist but cannot be read.
"""
Prices = Callable[[str, Mapping[str, Any]], float | None]
"""Returns the monthly price of a resource in USD, or None if it is unknown, given its kind and AWS's description."""


@dataclass(frozen=True)
class Deletion:
    """The call that deletes a resource: a boto3 service, its method, and the arguments."""

    service: str
    method: str
    arguments: Mapping[str, Any]

    def command(self, region: str) -> str:
        """Return the call as a command of the AWS CLI."""
        parts = ["aws", self.service, self.method.replace("_", "-"), "--region", region]
        for name, value in self.arguments.items():
            values = value if isinstance(value, list) else [value]
            parts += [f"--{_WORD.sub('-', name).lower()}", *values]
        return " ".join(parts)


@dataclass(frozen=True)
class Zombie:
    """A resource without a run.

    Attributes:
        usd_per_month: Its price, or None if it is unknown.
        remedy: The command that deletes it, or another action.
        deletion: The call that deletes it, or None if its deployment must change.
        has_data: Whether the deletion loses data.
    """

    kind: str
    id: str
    deployment: str
    reason: str
    usd_per_month: float | None
    remedy: str
    deletion: Deletion | None = field(default=None, repr=False)
    has_data: bool = False

    def __str__(self) -> str:
        """Return the resource as one line."""
        price = "" if self.usd_per_month is None else f", {self.usd_per_month:,.2f} USD per month"
        return f"{self.kind} {self.id} of {self.deployment}: {self.reason}{price}\n  {self.remedy}"


class NotExamined(Exception):
    """A record that decides whether resources are in use cannot be read."""


FAILURES = (BotoCoreError, ClientError, NotExamined)
"""The errors after which resources count as not examined."""


@dataclass(frozen=True)
class Gap:
    """Resources that a search could not examine, with the reason."""

    what: str
    reason: str

    def __str__(self) -> str:
        """Return the gap as one line."""
        return f"{self.what}: not examined: {self.reason}"


@dataclass(frozen=True)
class Findings:
    """The result of a search: the resources without a run, and the resources that could not be examined."""

    zombies: tuple[Zombie, ...]
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True)
class Search:
    """A search in one region.

    Attributes:
        client: Clients of SERVICES, which must already exist.
        stacks: The kinds of stacks that each deployment has; see `deployments`.
        now_unix_seconds: Time of the search.
        heartbeats: The heartbeat times by deployment. If they are unknown, no instance of the deployment is reported as
            silent.
        prices: The prices of resources.
    """

    client: Clients
    region: str
    stacks: Mapping[str, frozenset[str]]
    now_unix_seconds: float
    heartbeats: Heartbeats
    prices: Prices

    def run(self) -> Findings:
        """Return the region's resources without a run, in order of kind. A failed call leaves a gap in its kind."""
        with ThreadPoolExecutor(8) as pool:
            parts = pool.map(lambda kind: collected(kind, KINDS[kind](self)), KINDS)
        return joined(parts)

    def has(self, deployment: str, stack: str) -> bool:
        """Return True if a deployment has a kind of stack."""
        return stack in self.stacks.get(deployment, ())

    def has_nodes(self, deployment: str) -> bool:
        """Return True if a stack of a fleet or of a cluster manages the nodes of a deployment."""
        return any(self.has(deployment, stack) for stack in NODE_STACKS)

    def trains(self, deployment: str) -> bool:
        """Return True if nodes of a fleet or of a cluster can use the deployment's network, in any slot."""
        return any(stack.startswith(NODE_STACKS) for stack in self.stacks.get(deployment, ()))

    def pages(self, call: str, key: str, **arguments: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the resources on all pages of one of EC2's describe calls."""
        for page in self.client("ec2").get_paginator(call).paginate(**arguments):
            yield from page[key]

    def age_seconds(self, moment: Any) -> float:
        """Return the age of a resource."""
        return float(self.now_unix_seconds - moment.timestamp())

    def zombie(
        self,
        kind: str,
        id_: str,
        deployment: str,
        reason: str,
        resource: Mapping[str, Any],
        remedy: Deletion | str,
        *,
        has_data: bool = False,
    ) -> Zombie:
        """Return a zombie with its price and remedy."""
        usd, deletion = self.prices(kind, resource), remedy if isinstance(remedy, Deletion) else None
        text = remedy.command(self.region) if isinstance(remedy, Deletion) else remedy
        return Zombie(kind, id_, deployment, reason, usd, text, deletion, has_data)


def collected(what: str, found: Iterable[Zombie | Gap]) -> Findings:
    """Return the results of one kind of resource. An error ends the search of this kind, and is its last gap."""
    zombies: list[Zombie] = []
    gaps: list[Gap] = []
    try:
        for each in found:
            if isinstance(each, Gap):
                gaps.append(each)
            else:
                zombies.append(each)
    except FAILURES as error:
        gaps.append(Gap(what, str(error)))
    return Findings(tuple(zombies), tuple(gaps))


def joined(parts: Iterable[Findings]) -> Findings:
    """Return the findings of all parts, in their order."""
    kept = list(parts)
    return Findings(
        tuple(zombie for part in kept for zombie in part.zombies), tuple(gap for part in kept for gap in part.gaps)
    )


def heartbeats(s3: Any, bucket: str, control_prefix: str) -> Mapping[str, float]:
    """Return the times of a run's heartbeats in Unix seconds.

    Raises:
        NotExamined: There are more than MAX_HEARTBEAT_PAGES pages of heartbeats.
        botocore.exceptions.ClientError: AWS rejected the call.
    """
    times: dict[str, float] = {}
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{control_prefix}heartbeats/")
    for number, page in enumerate(pages, 1):
        if number > MAX_HEARTBEAT_PAGES:
            reason = f"more than {MAX_HEARTBEAT_PAGES} pages of objects; delete the heartbeats of terminated instances"
            raise NotExamined(f"s3://{bucket}/{control_prefix}heartbeats/: {reason}")
        for item in page.get("Contents", []):
            instance_id = item["Key"].removesuffix(".json").rpartition(":")[2]
            times[instance_id] = item["LastModified"].timestamp()
    return times


def _instances(seen: Search) -> Iterator[Zombie | Gap]:
    """Instances without a stack of their fleet or cluster, and those whose supervisor has exited or never started."""
    live = [{"Name": "instance-state-name", "Values": ["pending", "running"]}, _tagged(DEPLOYMENT_TAG)]
    heard: dict[str, Mapping[str, float] | None] = {}
    for group in seen.pages("describe_instances", "Reservations", Filters=live):
        for one in group["Instances"]:
            owner, instance_id = _tag(one, DEPLOYMENT_TAG), one["InstanceId"]
            remedy = Deletion("ec2", "terminate_instances", {"InstanceIds": [instance_id]})
            if not seen.has_nodes(owner):
                reason = NO_NODES
                yield seen.zombie("instance", instance_id, owner, reason, one, remedy)
                continue
            if any(seen.has(owner, stack) for stack in CLUSTER_STACKS):  # the nodes of a cluster send no heartbeats
                continue
            if seen.age_seconds(one["LaunchTime"]) < BOOT_SECONDS:
                continue
            if owner not in heard:
                try:
                    heard[owner] = seen.heartbeats(owner)
                except FAILURES as error:
                    heard[owner] = None
                    yield Gap(f"heartbeats of the instances of {owner}", str(error))
            times = heard[owner]
            if times is None:
                continue
            silent = seen.now_unix_seconds - times.get(instance_id, 0.0)
            if silent > SILENT_SECONDS:
                is_known = instance_id in times
                reason = f"its last heartbeat is {silent / 60:.0f} min old" if is_known else "it never sent a heartbeat"
                yield seen.zombie("instance", instance_id, owner, reason, one, remedy)


def _volumes(seen: Search) -> Iterator[Zombie]:
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
            remedy = Deletion("ec2", "delete_volume", {"VolumeId": volume_id})
            yield seen.zombie("volume", volume_id, owner, reason, one, remedy, has_data=True)


def _snapshots(seen: Search) -> Iterator[Zombie]:
    """Snapshots of checkpoint volumes whose StorageStack does not exist."""
    owned: dict[str, Any] = {"OwnerIds": ["self"], "Filters": [_tagged(SNAPSHOTS_TAG)]}
    for one in seen.pages("describe_snapshots", "Snapshots", **owned):
        owner, snapshot_id = _tag(one, SNAPSHOTS_TAG), one["SnapshotId"]
        if not seen.has(owner, "StorageStack"):
            remedy = Deletion("ec2", "delete_snapshot", {"SnapshotId": snapshot_id})
            reason = "its StorageStack does not exist"
            yield seen.zombie("snapshot", snapshot_id, owner, reason, one, remedy, has_data=True)


def _file_systems(seen: Search) -> Iterator[Zombie]:
    """File systems whose StorageStack does not exist."""
    for page in seen.client("fsx").get_paginator("describe_file_systems").paginate():
        for one in page["FileSystems"]:
            owner, file_system_id = _tag(one, DEPLOYMENT_TAG), one["FileSystemId"]
            if owner and not seen.has(owner, "StorageStack") and not _is_being_deleted(one.get("Lifecycle")):
                remedy = Deletion("fsx", "delete_file_system", {"FileSystemId": file_system_id})
                reason = "its StorageStack does not exist"
                yield seen.zombie("file system", file_system_id, owner, reason, one, remedy, has_data=True)


def _reservations(seen: Search) -> Iterator[Zombie]:
    """Capacity reservations without a stack with nodes, or without any instance."""
    filters = [{"Name": "state", "Values": ["active"]}, _tagged(DEPLOYMENT_TAG)]
    for one in seen.pages("describe_capacity_reservations", "CapacityReservations", Filters=filters):
        owner, reservation_id = _tag(one, DEPLOYMENT_TAG), one["CapacityReservationId"]
        total = one["TotalInstanceCount"]
        is_idle = one["AvailableInstanceCount"] == total and seen.age_seconds(one["CreateDate"]) > IDLE_SECONDS
        if seen.has_nodes(owner) and not is_idle:
            continue
        remedy: Deletion | str = "edit capacity.market in the deployment file, and deploy"
        reason = f"none of its {total} instances is used"
        if not seen.has_nodes(owner):
            reason = NO_NODES
            arguments = {"CapacityReservationId": reservation_id}
            remedy = Deletion("ec2", "cancel_capacity_reservation", arguments)
        yield seen.zombie("capacity reservation", reservation_id, owner, reason, one, remedy)


def _addresses(seen: Search) -> Iterator[Zombie]:
    """Elastic IP addresses that are not associated. A NetworkStack that is being created may associate its address."""
    for one in seen.client("ec2").describe_addresses(Filters=[_tagged(DEPLOYMENT_TAG)])["Addresses"]:
        if "AssociationId" not in one:
            owner, allocation_id = _tag(one, DEPLOYMENT_TAG), one["AllocationId"]
            remedy: Deletion | str = Deletion("ec2", "release_address", {"AllocationId": allocation_id})
            remedy = _down(owner) if seen.has(owner, "NetworkStack") else remedy
            yield seen.zombie("Elastic IP address", allocation_id, owner, "it is not associated", one, remedy)


def _spot_requests(seen: Search) -> Iterator[Zombie]:
    """Open or active spot requests of a fleet or cluster without a stack: they launch further instances."""
    filters = [{"Name": "state", "Values": list(_LIVE_REQUESTS)}, _tagged(DEPLOYMENT_TAG)]
    for one in seen.pages("describe_spot_instance_requests", "SpotInstanceRequests", Filters=filters):
        owner, request_id = _tag(one, DEPLOYMENT_TAG), one["SpotInstanceRequestId"]
        if not seen.has_nodes(owner):
            remedy = Deletion("ec2", "cancel_spot_instance_requests", {"SpotInstanceRequestIds": [request_id]})
            reason = NO_NODES
            yield seen.zombie("spot request", request_id, owner, reason, one, remedy)


def _endpoints(seen: Search) -> Iterator[Zombie]:
    """Interface endpoints whose NetworkStack does not exist."""
    for one in seen.pages("describe_vpc_endpoints", "VpcEndpoints", Filters=[_tagged(DEPLOYMENT_TAG)]):
        owner, endpoint_id = _tag(one, DEPLOYMENT_TAG), one["VpcEndpointId"]
        is_billed = one.get("VpcEndpointType") == "Interface" and not _is_being_deleted(one.get("State"))
        if is_billed and not seen.has(owner, "NetworkStack"):
            remedy = Deletion("ec2", "delete_vpc_endpoints", {"VpcEndpointIds": [endpoint_id]})
            yield seen.zombie("VPC endpoint", endpoint_id, owner, "its NetworkStack does not exist", one, remedy)


def _gateways(seen: Search) -> Iterator[Zombie]:
    """NAT gateways whose deployment has no stack with nodes."""
    filters = [{"Name": "state", "Values": ["pending", "available"]}, _tagged(DEPLOYMENT_TAG)]
    for one in seen.pages("describe_nat_gateways", "NatGateways", Filters=filters):
        owner, gateway_id = _tag(one, DEPLOYMENT_TAG), one["NatGatewayId"]
        if not seen.trains(owner):
            remedy: Deletion | str = Deletion("ec2", "delete_nat_gateway", {"NatGatewayId": gateway_id})
            remedy = _down(owner) if seen.has(owner, "NetworkStack") else remedy
            reason = NO_NODES
            yield seen.zombie("NAT gateway", gateway_id, owner, reason, one, remedy)


def _networks(seen: Search) -> Iterator[Zombie]:
    """NetworkStacks, whose endpoints are billed, without a stack with nodes."""
    for owner, kinds in sorted(seen.stacks.items()):
        if "NetworkStack" in kinds and not seen.trains(owner):
            reason = "nothing trains in its network"
            yield seen.zombie("stack", f"{owner}-NetworkStack", owner, reason, {}, _down(owner))


def _is_being_deleted(state: object) -> bool:
    """Return True for the state of an endpoint or file system that AWS still describes after its deletion.

    Sources (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_VpcEndpoint.html and
    https://docs.aws.amazon.com/fsx/latest/APIReference/API_FileSystem.html
    """
    return str(state).lower() in ("deleting", "deleted")


def _down(owner: str) -> str:
    return f"trainstack down FILE, with the deployment file of {owner}"


def _tagged(key: str) -> dict[str, Any]:
    return {"Name": "tag-key", "Values": [key]}


def _tag(resource: Mapping[str, Any], key: str) -> str:
    tags: Iterable[Mapping[str, str]] = resource.get("Tags", [])
    return next((each["Value"] for each in tags if each["Key"] == key), "")


KINDS: Mapping[str, Callable[[Search], Iterator[Zombie | Gap]]] = {
    "instances": _instances,
    "volumes": _volumes,
    "snapshots": _snapshots,
    "file systems": _file_systems,
    "capacity reservations": _reservations,
    "Elastic IP addresses": _addresses,
    "spot requests": _spot_requests,
    "VPC endpoints": _endpoints,
    "NAT gateways": _gateways,
    "stacks": _networks,
}
"""The searches, one for each kind of resource."""
