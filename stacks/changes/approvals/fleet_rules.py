"""Rules for changes to fleets: instance types, places, prices, launch templates and network interfaces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from stacks.capacity.catalogue import catalogue
from stacks.changes.approvals.rules import MAX_GROWTH, Change, Rule, numbers, own
from stacks.changes.templates.values import listed, mapping, mappings, number, text_of
from stacks.changes.updates.differences import MISSING


def own_list(*types: str) -> Rule:
    """Return a rule that accepts a comma-separated list of references to the deployment's resources."""
    is_own = own(*types)

    def rule(change: Change) -> str | None:
        old, new = (_split_text(value) for value in (change.before, change.after))
        return is_own(Change(change.resource, change.path, old, new, change.sides))

    return rule


def _split_text(value: Any) -> Any:
    join = mapping({"value": value}).get("value")
    if isinstance(join, Mapping) and list(join) == ["Fn::Join"] and join["Fn::Join"][0] == ",":
        return join["Fn::Join"][1]
    if isinstance(join, Mapping) and list(join) == ["Fn::Join"] and join["Fn::Join"][0] == "":
        return [part for part in join["Fn::Join"][1] if part != ","]
    return MISSING if value is MISSING else listed(value)


def known_types(change: Change) -> str | None:
    """Accept instance types in the catalogue."""
    for name in change.added():
        if text_of(name) not in catalogue().types:
            return f"names the type {text_of(name)}, which is not in the catalogue"
    return None


def known_places(change: Change) -> str | None:
    """Accept the places that the controller ranks, if all are zones of one region and all types are known."""
    if change.after == "":
        return None
    try:
        document = json.loads(change.after)
        region, zones, kinds = document["region"], document["zones"], document["instance_types"]
        is_known = all(re.fullmatch(f"{re.escape(region)}[a-z]", zone) for zone in zones)
        is_known = is_known and set(document) == {"region", "zones", "instance_types"}
        return None if is_known and set(kinds) <= set(catalogue().types) else "has an unknown zone or instance type"
    except (TypeError, ValueError, KeyError, RecursionError):
        return "cannot be read"


def known_prices(change: Change) -> str | None:
    """Accept the controller's prices, which enforce a limit, if none is below half of the lowest known price."""
    try:
        prices = json.loads(change.after)
    except (TypeError, ValueError, RecursionError):
        return "cannot be read"
    for name, price in mapping(prices).items():
        known = [catalogue().usd_per_hour(region, name, "on_demand") for region in catalogue().regions_with(name)]
        lowest = min((one for one in known if one is not None), default=None)
        if lowest is None:
            return f"has a price for {name}, for which the catalogue has none"
        if not isinstance(price, int | float) or not lowest / MAX_GROWTH <= price:
            return f"has a price for {name} that is not at least half of the lowest known price, {lowest:g}"
    return None if isinstance(prices, dict) else "cannot be read"


def overrides(change: Change) -> str | None:
    """Accept overrides with known instance types, the deployment's subnets and launch templates, and priorities."""
    for one in change.added():
        if not mapping(one):
            return "cannot be read"
        unknown = one.keys() - {"InstanceType", "SubnetId", "Priority", "LaunchTemplateSpecification", *PRICES}
        if unknown:
            return f"has {', '.join(sorted(unknown))}, which the review does not recognize"
        for name, rule in _OVERRIDE_RULES:
            if name in one:
                reason = rule(Change(change.resource, (name,), _olds(change, name), one[name], change.sides))
                if reason is not None:
                    return reason
    return None


def _olds(change: Change, name: str) -> list[Any]:
    return [one[name] for one in mappings(change.before) if name in one] if change.before is not MISSING else []


def launch_template(change: Change) -> str | None:
    """Accept a reference to the latest version of one of the deployment's launch templates."""
    if change.after is MISSING or change.after in listed(change.before):
        return None
    value, kind = mapping(change.after), "AWS::EC2::LaunchTemplate"
    found = change.sides.targets(value, change.resource.stack, kind)
    is_latest = [one.attribute for one in found] == ["", "LatestVersionNumber"]
    is_one = len({one.logical_id for one in found}) == 1
    if value.keys() == {"LaunchTemplateId", "Version"} and is_latest and is_one:
        return None
    return f"names {text_of(change.after)} instead of the latest version of one of the deployment's templates"


def fleet_configs(change: Change) -> str | None:
    """Accept the launch template configurations of a maintained fleet."""
    for one in change.added():
        if not mapping(one) or one.keys() - {"LaunchTemplateSpecification", "Overrides"}:
            return "cannot be read"
        for name, rule in (("LaunchTemplateSpecification", launch_template), ("Overrides", overrides)):
            olds = [item for old in _olds(change, name) for item in listed(old)]
            reason = rule(Change(change.resource, (name,), olds, one.get(name, MISSING), change.sides))
            if reason is not None:
                return reason
    return None


def spot_price(change: Change) -> str | None:
    """Accept a price limit that does not grow beyond the on-demand price of the fleet's most expensive type."""
    becomes, was = number(change.after), number(listed(change.before)[0] if listed(change.before) else None)
    if change.after is MISSING:
        return "is removed, so nodes can cost more"
    bound = _highest_price(change)
    if becomes is not None and ((was is not None and becomes <= was) or (bound is not None and becomes <= bound)):
        return None
    price = "unknown" if bound is None else f"{bound:g} USD"
    return f"exceeds the on-demand price of the fleet's most expensive type ({price})"


def _highest_price(change: Change) -> float | None:
    """Return the highest on-demand price among the types of the new fleet, or None if a price is unknown."""
    from stacks.changes.effects.fleet_summary import fleet_summary

    fleet = fleet_summary(change.sides.after)
    if fleet is None or not fleet.instance_types:
        return None
    prices = [catalogue().usd_per_hour(fleet.region, name, "on_demand") for name in fleet.instance_types]
    return None if None in prices else max(one for one in prices if one is not None)


PRICES = ("MaxPrice", "SpotPrice")
_OVERRIDE_RULES: tuple[tuple[str, Rule], ...] = (
    ("InstanceType", known_types),
    ("SubnetId", own("AWS::EC2::Subnet")),
    ("Priority", numbers),
    ("LaunchTemplateSpecification", launch_template),
    *((name, spot_price) for name in PRICES),
)


def interfaces(change: Change) -> str | None:
    """Accept network interfaces without public addresses in the security groups that nodes already have."""
    known = {"DeviceIndex", "NetworkCardIndex", "InterfaceType", "AssociatePublicIpAddress", "DeleteOnTermination"}
    groups = [group for one in _olds(change, "Groups") for group in listed(one)]
    for one in change.added():
        if not mapping(one) or one.keys() - known - {"Groups"}:
            return "has elements that the review does not recognize"
        if text_of(one.get("AssociatePublicIpAddress")) != "false" and text_of(one.get("DeviceIndex")) == "0":
            return "can have a public address"
        if any(group not in groups for group in listed(one.get("Groups"))):
            return "has a different security group"
    return None
