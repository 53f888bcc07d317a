"""Findings of policy checkers that are accepted: written at the construct concerned, with the reason.

They travel in the template's metadata, in the formats that cdk-nag and checkov have for it, so that whoever reads the
template sees them. Sources (2026-11): https://github.com/cdklabs/cdk-nag and
https://www.checkov.io/2.Basics/Suppressing%20and%20Skipping%20Policies.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aws_cdk import CfnResource
from constructs import IConstruct


def accept(construct: IConstruct, rule: str, reason: str, *, applies_to: Sequence[str] = ()) -> None:
    """Accept what a rule finds in a resource.

    Args:
        construct: The resource, or a construct whose default child is one.
        rule: `AwsSolutions-...` of cdk-nag, or `CKV_...` of checkov.
        reason: Why it is right here; a sentence for the reviewer.
        applies_to: Of cdk-nag's rules that look at parts, regular expressions of the parts meant, such as
            `Resource::.*/runs/\\*`; none: the whole resource.
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
