"""Finds the keys of a deployment file that its engine does not use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

USED_BY_STACKS = (
    *("account", "tags", "network"),
    *("storage.deletion", "storage.lustre", "storage.transfer_acceleration", "storage.access_log_days"),
    *("storage.archive_after_days", "storage.noncurrent_version_days", "storage.node_report_days"),
    *("node.permissions_boundary", "node.session_manager", "node.extra_policies"),
)
"""Keys that have an effect on the stacks of a managed cluster."""


def unused_keys(section: BaseModel, used: Sequence[str], path: str = "") -> Iterator[str]:
    """Yield the path of each key that is set but not in `used`. Each key in `used` includes all keys below it."""
    for name in sorted(section.model_fields_set):
        place = f"{path}.{name}".lstrip(".")
        if place in used:
            continue
        value = section.__dict__.get(name)
        if isinstance(value, BaseModel) and any(each.startswith(f"{place}.") for each in used):
            yield from unused_keys(value, used, place)
        elif value is not None:
            yield place
