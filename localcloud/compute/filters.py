"""The `Filters` parameter of EC2's and Auto Scaling's describe calls, applied to answers in boto3's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from localcloud.api import ApiError


def matches(filters: Sequence[Mapping[str, Any]], item: Mapping[str, Any], fields: Mapping[str, str]) -> bool:
    """Tell whether `item` passes all filters; `fields` gives the (dotted) path in the item of each filter name.

    `tag:<key>`, `tag-key` and `tag-value` are understood for items with Tags; `*` and `?` are wild cards.

    Raises:
        ApiError: InvalidParameterValue for a filter name that is not known.
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
