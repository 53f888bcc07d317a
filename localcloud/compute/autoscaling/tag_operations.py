"""The API calls about tags and metrics of groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localcloud.api import ApiError, Call, Handler
from localcloud.compute.autoscaling.group_settings import read_tags
from localcloud.compute.autoscaling.model import GroupStore
from localcloud.compute.autoscaling.views import page, tag_list
from localcloud.compute.filters import matches

_FIELDS = {
    "auto-scaling-group": "ResourceId",
    "key": "Key",
    "value": "Value",
    "propagate-at-launch": "PropagateAtLaunch",
}


class TagOperations:
    """Handlers of the calls about tags."""

    def __init__(self, store: GroupStore) -> None:
        self._store = store

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
        return {"CreateOrUpdateTags": self.put, "DeleteTags": self.delete, "DescribeTags": self.describe}

    def put(self, call: Call) -> Mapping[str, Any]:
        """Tag groups; running instances keep their tags."""
        tags = call.parameters["Tags"]
        with self._store.lock:
            groups = [self._store.get(tag.get("ResourceId")) for tag in tags]
            read = [read_tags({"Tags": [tag]}) for tag in tags]
            for group, new in zip(groups, read, strict=True):
                group.tags.update(new)
        return {}

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Take tags from groups; a value, when given, must match."""
        with self._store.lock:
            for tag in call.parameters["Tags"]:
                group = self._store.get(tag.get("ResourceId"))
                kept = group.tags.get(tag["Key"])
                if kept is not None and tag.get("Value") in (None, kept.value):
                    del group.tags[tag["Key"]]
        return {}

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Describe the tags of all groups."""
        with self._store.lock:
            found = [tag for group in self._store.groups.values() for tag in tag_list(group)]
        filters = [
            {**one, "Values": [value.capitalize() if one["Name"] == "propagate-at-launch" else value
                               for value in one["Values"]]}
            for one in call.parameters.get("Filters", [])
        ]  # fmt: skip
        for one in filters:
            if one["Name"] not in _FIELDS:
                raise ApiError(
                    "ValidationError", f"Filter type {one['Name']} is not correct. Allowed: {', '.join(_FIELDS)}"
                )
        return page([tag for tag in found if matches(filters, tag, _FIELDS)], call.parameters, "Tags")
