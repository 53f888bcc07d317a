"""Shared helpers for the Describe calls: filters, pagination and timestamps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from localcloud.api import ApiError


def matches(filters: Sequence[Mapping[str, Any]], item: Mapping[str, Any], fields: Mapping[str, str]) -> bool:
    """Return True if `item`, in boto3's format, passes all `filters`.

    `fields` maps each filter name to a dotted path in the item. `tag:<key>`, `tag-key` and `tag-value` work for items
    with Tags. `*` and `?` are wildcards.

    Raises:
        ApiError: InvalidParameterValue for an unknown filter name.
    """
    return all(
        any(fnmatchcase(found, wanted) for found in _values(one["Name"], item, fields) for wanted in one["Values"])
        for one in filters
    )


def _values(name: str, item: Mapping[str, Any], fields: Mapping[str, str]) -> list[str]:
    tags = item.get("Tags", [])
    if name.startswith("tag:"):
        return [tag["Value"] for tag in tags if tag["Key"] == name[4:]]
    if name in ("tag-key", "tag-value"):
        return [tag["Key" if name == "tag-key" else "Value"] for tag in tags]
    if name not in fields:
        raise ApiError("InvalidParameterValue", f"The filter '{name}' is invalid")
    found: Any = item
    for part in fields[name].split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return [] if found is None else [str(found)]


def page(
    items: Sequence[Any], parameters: Mapping[str, Any], name: str, limit: int = 1000, *, size: str = "MaxResults"
) -> dict[str, Any]:
    """Return the page selected by `NextToken` and the parameter named by `size`, and the next page's token.

    The page's items are under the key `name`.

    Raises:
        ApiError: InvalidNextToken.
    """
    token = str(parameters.get("NextToken") or "0")
    if not token.isdigit():
        raise ApiError("InvalidNextToken", f"The token '{token}' is invalid.")
    start, count = int(token), min(int(parameters.get(size) or limit), limit)
    answer: dict[str, Any] = {name: list(items[start : start + count])}
    if start + count < len(items):
        answer["NextToken"] = str(start + count)
    return answer


def aware(time: datetime) -> datetime:
    """Return a time parameter with its time zone. The gateway parses times without a time zone as UTC."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def unix_seconds(time: datetime) -> float:
    """Return a time parameter in Unix seconds."""
    return aware(time).timestamp()


def timestamp(seconds: float) -> datetime:
    """Convert Unix seconds to the type that the gateway serializes."""
    return datetime.fromtimestamp(seconds, UTC)


def iso_time(seconds: float) -> str:
    """Format Unix seconds as AWS does, in UTC and to the second."""
    return timestamp(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")
