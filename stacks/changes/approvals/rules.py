"""Rules for changes to properties. A rule returns the reason why a change needs approval, or None to accept it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from stacks.capacity.catalogue import catalogue
from stacks.changes.effects.iam_permissions import Names, Permission, permissions_of
from stacks.changes.templates.references import Exports, Reference, references
from stacks.changes.templates.template_set import PropertyPath, TemplateSet
from stacks.changes.templates.values import listed, mapping, mappings, number, text_of
from stacks.changes.updates.differences import MISSING
from stacks.changes.updates.resources import ResourceChange

OWN_TAGS = ("trainstack:", "aws:", "aws-cdk:")
"""Prefixes of tags that the project and AWS read."""
MAX_GROWTH = 2.0
"""Largest growth factor of a node count or a cost that does not need approval."""


@dataclass(frozen=True)
class Sides:
    """Both template sets of a review, and the values that the rules need from them."""

    before: TemplateSet
    after: TemplateSet
    exports: Exports
    condition_tags: frozenset[str]
    """Tag keys that a policy or a snapshot rule reads, on either side."""

    @classmethod
    def of(cls, before: TemplateSet, after: TemplateSet) -> Sides:
        """Collect the values from both template sets."""
        stacks = (*before.values(), *after.values())
        return cls(before, after, Exports(after), frozenset(key for one in stacks for key in _read_tags(one.template)))

    def targets(self, value: Any, stack: str, *types: str) -> list[Reference]:
        """Return the references in a value to resources of the given types."""
        found = (reference for _, reference in references(value, stack, self.exports))
        return [one for one in found if self.type_of(one) in types]

    def type_of(self, reference: Reference) -> str:
        """Return the type of the resource that a reference names, or "" if the new side does not contain it."""
        stack = self.after.get(reference.stack)
        return "" if stack is None else str(stack.resources.get(reference.logical_id, {}).get("Type", ""))


@dataclass(frozen=True)
class Change:
    """A change to one property. `before` or `after` is MISSING if that side does not have the property."""

    resource: ResourceChange
    path: PropertyPath
    before: Any
    after: Any
    sides: Sides

    @property
    def is_new(self) -> bool:
        """Whether the change adds the resource."""
        return self.resource.before is None

    def added(self) -> list[Any]:
        """Return the items of a list that the old side does not contain. An intrinsic function is one unknown item."""
        old = [] if self.before is MISSING else listed(self.before)
        return [] if self.after is MISSING else [one for one in listed(self.after) if one not in old]


Rule = Callable[[Change], str | None]


def passes(_: Change) -> None:
    """Accept any change."""
    return


def found_elsewhere(_: Change) -> None:
    """Accept any change, because the findings about data, permissions, network access or nodes cover the property."""
    return


def asks(reason: str) -> Rule:
    """Return a rule under which every change needs approval."""
    return lambda _: reason


def any_of(*values: Any, default: Any = MISSING) -> Rule:
    """Return a rule that accepts the given new values. `default` is the value of a missing property."""
    texts = {text_of(value) for value in values}

    def rule(change: Change) -> str | None:
        value = default if change.after is MISSING else change.after
        return None if value is not MISSING and text_of(value) in texts else "is not a value that the review recognizes"

    return rule


def in_new_resources(rule: Rule) -> Rule:
    """Return a rule that applies to added resources. A change to an existing resource needs approval."""
    return lambda change: rule(change) if change.is_new else "changes on an existing resource"


def numbers(change: Change) -> str | None:
    """Accept a number, or a property that is not set."""
    if change.after is MISSING or number(change.after) is not None:
        return None
    return "is not a number"


def bounded_growth(change: Change) -> str | None:
    """Accept a number that at most doubles."""
    was, becomes = number(change.before), number(change.after)
    if becomes is None:
        return "cannot be compared"
    if was is None:
        return None if change.is_new else "has no old value to compare with"
    return None if becomes <= max(was * MAX_GROWTH, 1.0) else f"grows by a factor of more than {MAX_GROWTH:g}"


def at_most(bound: float) -> Rule:
    """Return a rule that accepts numbers up to a bound."""

    def rule(change: Change) -> str | None:
        found = number(change.after)
        return None if found is not None and found <= bound else f"is more than {bound:g}, or unknown"

    return rule


def no_increase(change: Change) -> str | None:
    """Accept a number that does not grow."""
    return _ordered(change, "grows", lambda was, becomes: becomes <= was)


def no_decrease(change: Change) -> str | None:
    """Accept a number that does not shrink."""
    return _ordered(change, "shrinks", lambda was, becomes: becomes >= was)


def lower_limit(change: Change) -> str | None:
    """Accept a limit that does not grow. An empty text means that there is no limit."""
    was, becomes = (inf if text_of(one) == "" else number(one) for one in (change.before, change.after))
    if was is None or becomes is None:
        return "cannot be compared"
    return None if becomes <= was else "grows, or is removed"


def _ordered(change: Change, verb: str, is_right: Callable[[float, float], bool]) -> str | None:
    was, becomes = number(change.before), number(change.after)
    if change.is_new and becomes is not None:
        return None
    if was is None or becomes is None:
        return "cannot be compared"
    return None if is_right(was, becomes) else verb


def tags(change: Change) -> str | None:
    """Accept tags that are not read by the project, the deployment's policies or its snapshot rules."""
    old, new = _tags(change.before), _tags(change.after)
    if old is None or new is None:
        return "cannot be compared"
    for key in sorted(old.keys() | new.keys()):
        is_read = key in change.sides.condition_tags or key.startswith(OWN_TAGS)
        if is_read and old.get(key) != new.get(key) and not change.is_new:
            return f"has the tag {key}, which policies or functions read"
    return None


def _tags(value: Any) -> dict[str, Any] | None:
    """Return tags in any CloudFormation format as a mapping, or None if they cannot be read."""
    if value is MISSING:
        return {}
    if mapping(value):
        return dict(value)
    items = mappings(value)
    if not isinstance(value, list) or len(items) != len(value) or any("Key" not in one for one in items):
        return None
    return {text_of(one["Key"]): one for one in items}


def tag_specifications(change: Change) -> str | None:
    """Accept tag specifications with unchanged resource types and accepted tags."""
    old, new = ([] if one is MISSING else mappings(one) for one in (change.before, change.after))
    types = [[one.get("ResourceType") for one in side] for side in (old, new)]
    if change.is_new:
        return None
    if types[0] != types[1] or len(new) != len(listed(change.after)):
        return "has different resource types"
    for was, becomes in zip(old, new, strict=True):
        pair = was.get("Tags", MISSING), becomes.get("Tags", MISSING)
        reason = tags(Change(change.resource, change.path, *pair, change.sides))
        if reason is not None:
            return reason
    return None


def own(*types: str) -> Rule:
    """Return a rule that accepts references to the deployment's resources of the given types, and removed values."""

    def rule(change: Change) -> str | None:
        for value in change.added():
            found = list(references(value, change.resource.stack, change.sides.exports))
            if len(found) != 1 or change.sides.type_of(found[0][1]) not in types or "Fn::" in text_of(value):
                return f"names {text_of(value)}, which is not part of the deployment"
        return None

    return rule


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


def administered_key(change: Change) -> str | None:
    """Accept a key policy that keeps the key's administrators. The findings about permissions cover everything else."""
    old, new = (_administrators(value) for value in (change.before, change.after))
    return "no longer lets the same principals administer the key" if old - new else None


def _administrators(policy: Any) -> set[Permission]:
    return {one for one in permissions_of(None if policy is MISSING else policy) if one.action == Names(("kms:*",))}


def stricter_alarm(change: Change) -> str | None:
    """Accept a threshold that does not make an alarm fire later."""
    operator = text_of(change.resource.properties("after").get("ComparisonOperator"))
    if operator.startswith("GreaterThan"):
        return no_increase(change)
    return no_decrease(change) if operator.startswith("LessThan") else "cannot be compared"


def _read_tags(template: Any) -> Iterator[str]:
    """Yield the keys of tags that conditions (as .../ResourceTag/KEY) or snapshot rules read."""
    if isinstance(template, list):
        for item in template:
            yield from _read_tags(item)
    elif isinstance(template, dict):  # Mapping is slower, and templates contain many values
        for name, value in template.items():
            kind, _, key = str(name).partition("/")
            if key and kind.lower().endswith(("resourcetag", "principaltag", "requesttag")):
                yield key
            if name == "TargetTags":
                yield from (text_of(one["Key"]) for one in mappings(value) if "Key" in one)
            yield from _read_tags(value)
