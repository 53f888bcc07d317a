"""Questions about capacity: quotas, offerings, a reservation, the spot market."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from stacks.capacity_plan import is_spot, on_demand_base, zone_candidates
from stacks.config import DeploymentConfig
from stacks.errors import Problem
from stacks.instance_types import InstanceType, catalogue

if TYPE_CHECKING:
    from stacks.account import ClientOf

# Quota codes of vCPUs by family. Source (2026-11):
# https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
ON_DEMAND_QUOTAS: Mapping[str, str] = {"standard": "L-1216C47A", "g": "L-DB2E81BA", "p": "L-417A185B"}
SPOT_QUOTAS: Mapping[str, str] = {
    "standard": "L-34B43A08",
    "g": "L-3819A6DF",
    "p4": "L-7212CCBC",
    "p5": "L-C4BD4855",
}
LOW_SCORE = 4
"""Of 1 to 10; AWS promises nothing even at 10.
Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-sps-works.html"""


def _types(config: DeploymentConfig) -> list[InstanceType]:
    return [catalogue().types[name] for name in config.capacity.instance_types]


def quota_code(one: InstanceType, *, spot: bool) -> str | None:
    """Return the code of the vCPU quota that a type counts against; None: not known here."""
    letter = one.family[0]
    if letter not in "gp":
        return (SPOT_QUOTAS if spot else ON_DEMAND_QUOTAS)["standard"]
    if letter == "g":
        return (SPOT_QUOTAS if spot else ON_DEMAND_QUOTAS)["g"]
    return SPOT_QUOTAS.get(one.family[:2]) if spot else ON_DEMAND_QUOTAS["p"]


def quotas(config: DeploymentConfig, clients: ClientOf) -> Iterator[Problem]:
    """The account's vCPU quotas must hold the fleet, whichever listed type it gets."""
    if config.capacity.market == "capacity_block":
        return  # paid for in advance, and started by AWS itself
    base = on_demand_base(config)
    parts = [(False, base), (True, config.capacity.nodes - base)] if is_spot(config) else [(False, base)]
    client = clients("service-quotas")
    for spot, machines in parts:
        largest: dict[str, InstanceType] = {}
        for one in _types(config):
            code = quota_code(one, spot=spot)
            if code is not None and one.vcpus > largest.get(code, one).vcpus - (code not in largest):
                largest[code] = one
        for code, one in largest.items() if machines else ():
            quota = client.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]
            needed = machines * one.vcpus
            if quota["Value"] < needed:
                rule = f"{machines} x {one.name} take {needed} vCPUs, and {quota['QuotaName']} is {quota['Value']:g}"
                remedy = f"ask for more of quota {code} in Service Quotas, or for fewer nodes"
                yield Problem("capacity.nodes", config.capacity.nodes, rule, remedy)


def offerings(config: DeploymentConfig, clients: ClientOf) -> Iterator[Problem]:
    """Each type should be offered in each zone that is tried; one that is offered in none cannot come."""
    pages = clients("ec2").get_paginator("describe_instance_type_offerings")
    names = list(config.capacity.instance_types)
    found: dict[str, set[str]] = {name: set() for name in names}
    for page in pages.paginate(LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": names}]):
        for one in page["InstanceTypeOfferings"]:
            found[one["InstanceType"]].add(one["Location"].removeprefix(config.region))
    tried = zone_candidates(config)
    for index, name in enumerate(names):
        path = f"capacity.instance_types.{index}"
        missing = [zone for zone in tried if zone not in found[name]]
        elsewhere = ", ".join(sorted(found[name])) or "no zone"
        if len(missing) == len(tried):
            rule = f"is offered in none of the zones {', '.join(tried)}, but in {elsewhere} of {config.region}"
            yield Problem(path, name, rule, "change network.zones, or drop the type")
        elif missing:
            rule = f"is not offered in zone {', '.join(missing)}: there are fewer pools"
            yield Problem(path, name, rule, f"it is in {elsewhere}", "warning")


def reservation(config: DeploymentConfig, clients: ClientOf) -> Iterator[Problem]:
    """A named reservation must be there, of a listed type, in the zone that is said, with room."""
    named = config.capacity.reservation
    if named is None or named.id is None:
        return
    path = "capacity.reservation.id"
    try:
        answer = clients("ec2").describe_capacity_reservations(CapacityReservationIds=[named.id])
    except ClientError as error:
        if not error.response["Error"]["Code"].startswith("InvalidCapacityReservationId"):
            raise
        yield Problem(path, named.id, f"{config.region} has no such reservation", "correct the id or the region")
        return
    (told,) = answer["CapacityReservations"]
    yield from _reserved(config, told)


def _reserved(config: DeploymentConfig, told: Mapping[str, Any]) -> Iterator[Problem]:
    named = config.capacity.reservation
    assert named is not None
    path, state = "capacity.reservation.id", told["State"]
    if state in ("scheduled", "payment-pending", "assessing", "pending"):
        rule = f"is {state}, from {told.get('StartDate', 'later')}: until then no machine comes"
        yield Problem(path, named.id, rule, "wait, or deploy then", "warning")
    elif state != "active":
        yield Problem(path, named.id, f"is {state}", "name one that is active")
    if told["InstanceType"] not in config.capacity.instance_types:
        rule = f"reserves {told['InstanceType']}, which is not among the types"
        yield Problem(path, named.id, rule, "list that type")
    zone = str(told.get("AvailabilityZone", "")).removeprefix(config.region)
    if zone and zone not in zone_candidates(config):
        rule = f"lies in zone {zone}, and nodes go to {', '.join(zone_candidates(config))}"
        yield Problem("capacity.reservation.zone", named.zone, rule, f"say zone: {zone}, with a subnet there")
    reserved = on_demand_base(config)
    if state == "active" and told["AvailableInstanceCount"] < reserved:
        rule = f"has {told['AvailableInstanceCount']} of {told['TotalInstanceCount']} machines free, {reserved} needed"
        yield Problem(path, named.id, rule, "end what uses it, or enlarge it", "warning")


def spot_placement(config: DeploymentConfig, clients: ClientOf) -> Iterator[Problem]:
    """AWS's own guess at whether so many spot machines come now."""
    machines = config.capacity.nodes - on_demand_base(config)
    if not is_spot(config) or machines <= 0:
        return
    answer = clients("ec2").get_spot_placement_scores(
        InstanceTypes=list(config.capacity.instance_types),
        TargetCapacity=machines,
        SingleAvailabilityZone=len(zone_candidates(config)) == 1 or config.capacity.placement == "cluster",
        RegionNames=[config.region],
    )
    best = max((one["Score"] for one in answer["SpotPlacementScores"]), default=-math.inf)
    if best <= LOW_SCORE:
        told = "none" if best == -math.inf else f"{best} of 10"
        rule = f"{machines} spot machines of these types have the placement score {told} now"
        remedy = "list more types and zones, or give min_nodes and patience"
        yield Problem("capacity.instance_types", ", ".join(config.capacity.instance_types), rule, remedy, "warning")
