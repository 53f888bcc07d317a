"""Suppresses policy checker findings. Each suppression is next to its construct and states a reason.

Suppressions are stored in the template metadata, in the cdk-nag and checkov formats, so template readers can see them.
Sources (2026-11): https://github.com/cdklabs/cdk-nag and
https://www.checkov.io/2.Basics/Suppressing%20and%20Skipping%20Policies.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aws_cdk import CfnResource
from constructs import IConstruct


def suppress(construct: IConstruct, rule: str, reason: str, *, applies_to: Sequence[str] = ()) -> None:
    """Suppress a rule for a resource.

    Args:
        construct: The resource, or a construct whose default child is a resource.
        rule: A cdk-nag rule (`AwsSolutions-...`) or checkov rule (`CKV_...`).
        reason: A sentence that explains to the reviewer why the finding is acceptable.
        applies_to: Regular expressions for the findings of a cdk-nag rule that reports parts of a resource, such as
            `Resource::.*/runs/\\*`. If empty, all findings are suppressed.
    """
    resource = construct if isinstance(construct, CfnResource) else construct.node.default_child
    assert isinstance(resource, CfnResource), construct.node.path
    entry: dict[str, Any]
    if rule.startswith("CKV"):
        tool, key, entry = "checkov", "skip", {"id": rule, "comment": reason}
    else:
        tool, key, entry = "cdk_nag", "rules_to_suppress", {"id": rule, "reason": reason}
        if applies_to:
            entry["applies_to"] = [{"regex": f"/^{pattern}$/"} for pattern in applies_to]
    known = resource.get_metadata(tool) or {key: []}
    resource.add_metadata(tool, {key: [*known[key], entry]})
