"""Changes to a bucket's lifecycle rules that delete or archive objects sooner, or move them to a colder storage class.

Source (2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/
aws-properties-s3-bucket-lifecycleconfiguration-rule.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from stacks.changes.templates.references import is_intrinsic
from stacks.changes.templates.values import listed, mapping, number, text_of

_KNOWN = {"Id", "Status", "Prefix", "ExpirationInDays", "NoncurrentVersionExpirationInDays", "Transitions"} | {
    "AbortIncompleteMultipartUpload",
    "ExpiredObjectDeleteMarker",  # deletes only markers without versions, not data
    "NoncurrentVersionExpiration",
}
_FILTERS = ("TagFilters", "ObjectSizeGreaterThan", "ObjectSizeLessThan")
"""Elements of a rule that limit it to some objects. A rule is compared only with rules that have the same elements."""
INSTANT_CLASSES = ("INTELLIGENT_TIERING", "STANDARD_IA", "GLACIER_IR")
"""Multi-zone storage classes whose objects can be read immediately. Source (2026-11):
https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-class-intro.html"""
UPLOADS = "unfinished uploads"


@dataclass(frozen=True)
class _Action:
    """An action of a rule on the objects under a prefix. `filters` is JSON."""

    kind: str
    prefix: str
    filters: str

    def __str__(self) -> str:
        """Return the action and its objects as text."""
        objects = f"objects under {self.prefix}" if self.prefix else "objects"
        return f"{self.kind} of {objects}" + (f" with {self.filters}" if self.filters != "{}" else "")


def changed_rules(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    """Yield a flag (True: data is at risk) and a text for each difference between the rules of two buckets."""
    old, new = (_rules(properties) for properties in (before, after))
    for rule in new:
        if rule not in old and not _is_readable(rule):
            yield True, f"a lifecycle rule cannot be compared: {text_of(rule)}"
    was, becomes = _days(old), _days(new)
    for action in sorted(was.keys() | becomes.keys(), key=str):
        before_days, after_days = _at_most(was, action), _at_most(becomes, action)
        if before_days != after_days:
            is_risk = after_days < before_days
            if not is_risk and action not in was:
                continue
            yield is_risk, f"{action}: {_days_text(before_days)} -> {_days_text(after_days)}"


def _rules(properties: Mapping[str, Any]) -> list[Any]:
    """Return the rules that are not disabled, without their ids."""
    configuration = properties.get("LifecycleConfiguration")
    if configuration is not None and not mapping(configuration):
        return [configuration]
    return [
        {name: value for name, value in rule.items() if name != "Id"} if mapping(rule) else rule
        for rule in listed(mapping(configuration).get("Rules"))
        if mapping(rule).get("Status") != "Disabled"
    ]


def _is_readable(rule: Any) -> bool:
    if not mapping(rule) or rule.get("Status") != "Enabled" or not rule.keys() <= {*_KNOWN, *_FILTERS}:
        return False
    days = [rule[name] for name in ("ExpirationInDays", "NoncurrentVersionExpirationInDays") if name in rule]
    for transition in listed(rule.get("Transitions")):
        if mapping(transition).keys() != {"StorageClass", "TransitionInDays"}:
            return False
        days.append(transition["TransitionInDays"])
    if "NoncurrentVersionExpiration" in rule:
        expiration = mapping(rule["NoncurrentVersionExpiration"])
        if expiration.keys() != {"NoncurrentDays"}:
            return False
        days.append(expiration["NoncurrentDays"])
    if "AbortIncompleteMultipartUpload" in rule:
        days.append(mapping(rule["AbortIncompleteMultipartUpload"]).get("DaysAfterInitiation"))
    return not is_intrinsic(rule.get("Prefix")) and all(number(one) is not None for one in days)


def _days(rules: list[Any]) -> dict[_Action, float]:
    """Return the number of days before each action, or the lowest number if several rules contain the action."""
    found: dict[_Action, float] = {}
    for rule in rules:
        if not _is_readable(rule):
            continue
        filters = json.dumps({name: rule[name] for name in _FILTERS if name in rule}, sort_keys=True, default=str)
        for kind, days in _actions(rule):
            action = _Action(kind, text_of(rule.get("Prefix", "")), filters)
            found[action] = min(found.get(action, inf), number(days, otherwise=inf))
    return found


def _actions(rule: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "expiration", rule.get("ExpirationInDays", inf)
    yield "expiration of old versions", rule.get("NoncurrentVersionExpirationInDays", inf)
    yield "expiration of old versions", mapping(rule.get("NoncurrentVersionExpiration")).get("NoncurrentDays", inf)
    yield (
        f"expiration of {UPLOADS}",
        mapping(rule.get("AbortIncompleteMultipartUpload")).get("DaysAfterInitiation", inf),
    )
    for transition in listed(rule.get("Transitions")):
        name = text_of(transition["StorageClass"])
        yield "transition" if name in INSTANT_CLASSES else f"transition to {name}", transition["TransitionInDays"]


def _at_most(days: Mapping[_Action, float], action: _Action) -> float:
    """Return the days before an action affects the objects of another action, or infinity if it never does."""
    return min(
        (
            value
            for each, value in days.items()
            if each.kind == action.kind
            and action.prefix.startswith(each.prefix)
            and each.filters in ("{}", action.filters)
        ),
        default=inf,
    )


def _days_text(days: float) -> str:
    return "never" if days == inf else f"after {days:g} days"
