"""Capacity checks for an account: quotas, offerings, reservations and spot placement scores."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from botocore.exceptions import ClientError

from hardware import InstanceType
from stacks.account.account import Account, ClientOf
from stacks.capacity.catalogue import catalogue
from stacks.capacity.plan import is_spot, on_demand_base, zone_candidates
from stacks.config import DeploymentConfig
from stacks.config.slots import capacities, slots_of
from stacks.errors import Problem

LOW_SCORE = 4
"""Threshold on AWS's scale of 1 to 10. Even a score of 10 does not guarantee capacity.
Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-sps-works.html"""


Check = Callable[[DeploymentConfig, ClientOf], Iterator[Problem]]


def each_section(check: Check) -> Callable[[Account], Iterator[Problem]]:
    """Return a check of all capacity sections, from a check of a fleet's section."""

    def checked(account: Account) -> Iterator[Problem]:
        for path, config in capacities(account.config).items():
            for problem in check(config, account.client):
                is_own = problem.path.startswith("capacity.")
                yield replace(problem, path=path + problem.path.removeprefix("capacity")) if is_own else problem

    return checked


def quotas(config: DeploymentConfig, clients: ClientOf) -> Iterator[Problem]:
    """Check that the vCPU quotas allow the fleets of all slots to launch any of the listed types."""
    client = clients("service-quotas")
    needs: dict[str, Counter[str]] = {}
    unknown: dict[tuple[str, bool], Problem] = {}
    for slot in slots_of(config):
        for spot, instances in _markets(slot.config):
            largest: dict[str, InstanceType] = {}
            for name in slot.config.capacity.instance_types:
                one = catalogue().types[name]
                code = one.quota_code(spot=spot) or _quota_by_name(client, one, spot=spot)
                if code is None:
                    unknown[name, spot] = _unknown_quota(one, spot=spot)
                elif code not in largest or one.vcpus > largest[code].vcpus:
                    largest[code] = one
            for code, one in largest.items():
                needs.setdefault(code, Counter())[one.name] += instances
    yield from unknown.values()
    for code, counts in needs.items():
        quota = client.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]
        needed = sum(instances * catalogue().types[name].vcpus for name, instances in counts.items())
        if quota["Value"] < needed:
            fleets = " and ".join(f"{instances} x {name}" for name, instances in counts.items())
            rule = f"{fleets} require {needed} vCPUs, but the quota {quota['QuotaName']} is {quota['Value']:g}"
            remedy = f"request an increase of quota {code} in Service Quotas, or use fewer nodes"
            yield Problem("capacity.nodes", config.capacity.nodes, rule, remedy)


def _markets(config: DeploymentConfig) -> Iterator[tuple[bool, int]]:
    """Yield whether instances are spot and their number. Capacity blocks do not count against the quotas."""
    base = 0 if config.capacity.market == "capacity_block" else on_demand_base(config)
    rest = config.capacity.nodes - base if is_spot(config) else 0
    yield from ((spot, instances) for spot, instances in ((False, base), (True, rest)) if instances)


def _unknown_quota(one: InstanceType, *, spot: bool) -> Problem:
    market = "spot" if spot else "on-demand"
    rule = f"the vCPU quota for {market} instances of {one.family.name} is unknown and was not checked"
    remedy = f"look for {_quota_word(one)} in Service Quotas (ec2)"
    return Problem("capacity.instance_types", one.name, rule, remedy, "warning")


def _quota_word(one: InstanceType) -> str:
    """Return a family's name as it appears in quota names, such as P6 for p6-b200."""
    found = re.match(r"[a-z]+\d+", one.family.name)
    return (found.group() if found else one.family.name).upper()


def _quota_by_name(client: Any, one: InstanceType, *, spot: bool) -> str | None:
    """Find a family's quota code by name. The catalogue does not contain the codes of the newest families."""
    wanted = "Spot Instance Requests" if spot else "Running On-Demand"
    for page in client.get_paginator("list_service_quotas").paginate(ServiceCode="ec2"):
        for quota in page["Quotas"]:
            words = re.findall(r"\w+", quota["QuotaName"])
            if wanted in quota["QuotaName"] and _quota_word(one) in words:
                return str(quota["QuotaCode"])
    return None


def offerings(config: DeploymentConfig, clients: ClientOf) -> Iterator[Problem]:
    """Check that each type is offered in the fleet's zones. If only some zones offer a type, yield a warning."""
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
            rule = f"is not offered in the zones {', '.join(tried)}; {config.region} offers it in {elsewhere}"
            yield Problem(path, name, rule, "change network.zones, or remove the type")
        elif missing:
            rule = f"is not offered in zone {', '.join(missing)}, so fewer pools are available"
            yield Problem(path, name, rule, f"use the zones that offer it: {elsewhere}", "warning")


def reservation(config: DeploymentConfig, clients: ClientOf) -> Iterator[Problem]:
    """Check that the reservation exists in the configured zone, with enough capacity for a listed type."""
    named = config.capacity.reservation
    if named is None or named.id is None:
        return
    path = "capacity.reservation.id"
    try:
        answer = clients("ec2").describe_capacity_reservations(CapacityReservationIds=[named.id])
    except ClientError as error:
        if not error.response["Error"]["Code"].startswith("InvalidCapacityReservationId"):
            raise
        yield Problem(path, named.id, f"does not exist in {config.region}", "correct the id or the region")
        return
    (found,) = answer["CapacityReservations"]
    yield from _reserved(config, found)


def _reserved(config: DeploymentConfig, found: Mapping[str, Any]) -> Iterator[Problem]:
    named = config.capacity.reservation
    assert named is not None
    path, state = "capacity.reservation.id", found["State"]
    if state in ("scheduled", "payment-pending", "assessing", "pending"):
        rule = f"is {state} and starts at {found.get('StartDate', 'unknown')}, so no instance can launch before then"
        yield Problem(path, named.id, rule, "deploy after the start", "warning")
    elif state != "active":
        yield Problem(path, named.id, f"is {state}", "use an active reservation")
    if found["InstanceType"] not in config.capacity.instance_types:
        rule = f"reserves {found['InstanceType']}, which is not in capacity.instance_types"
        yield Problem(path, named.id, rule, "add that type")
    zone = str(found.get("AvailabilityZone", "")).removeprefix(config.region)
    if zone and zone not in zone_candidates(config):
        rule = f"must be {zone}, the reservation's zone; nodes launch in {', '.join(zone_candidates(config))}"
        yield Problem("capacity.reservation.zone", named.zone, rule, f"set zone: {zone}, with a subnet there")
    reserved = on_demand_base(config)
    if state == "active" and found["AvailableInstanceCount"] < reserved:
        free = f"{found['AvailableInstanceCount']} of {found['TotalInstanceCount']}"
        rule = f"has {free} instances available, but {reserved} are needed"
        yield Problem(path, named.id, rule, "terminate instances that use it, or enlarge the reservation", "warning")


def spot_placement(config: DeploymentConfig, clients: ClientOf) -> Iterator[Problem]:
    """Check AWS's estimate of how likely a spot request for all instances is to succeed now."""
    instances = config.capacity.nodes - on_demand_base(config)
    if not is_spot(config) or instances <= 0:
        return
    answer = clients("ec2").get_spot_placement_scores(
        InstanceTypes=list(config.capacity.instance_types),
        TargetCapacity=instances,
        SingleAvailabilityZone=len(zone_candidates(config)) == 1 or config.capacity.placement == "cluster",
        RegionNames=[config.region],
    )
    best = max((one["Score"] for one in answer["SpotPlacementScores"]), default=-math.inf)
    if best <= LOW_SCORE:
        score = "no score" if best == -math.inf else f"score {best} of 10"
        rule = f"the spot placement score for {instances} instances is currently low ({score})"
        remedy = "list more types and zones, set min_nodes, or expect to wait"
        yield Problem("capacity.instance_types", ", ".join(config.capacity.instance_types), rule, remedy, "warning")
