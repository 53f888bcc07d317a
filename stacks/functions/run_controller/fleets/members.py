"""The machines of an EC2 Fleet or Spot Fleet, over all pages: boto3 has no paginators for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import policy


def active_instances(describe: Callable[..., dict[str, Any]], **fleet: str) -> tuple[policy.Instance, ...]:
    """Return what the describing call lists; a fleet tells no life-cycle states, so all count as in service."""
    found: list[policy.Instance] = []
    token: dict[str, str] = {}
    while True:
        page = describe(**fleet, **token)
        found += [policy.Instance(item["InstanceId"], "InService") for item in page["ActiveInstances"]]
        if not page.get("NextToken"):
            return tuple(found)
        token = {"NextToken": page["NextToken"]}
