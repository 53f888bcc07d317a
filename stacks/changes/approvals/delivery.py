"""Changes to the delivery section of the deployment file, on which the review itself relies."""

from __future__ import annotations

from collections.abc import Sequence

from stacks.changes.causes import Edit
from stacks.changes.findings import Finding

SECTION = "delivery"


def delivery_findings(edits: Sequence[Edit]) -> list[Finding]:
    """Return the edits to the delivery section. It decides what is deployed, from where, and who approves it."""
    return [
        Finding("approval", "needs approval", "PipelineStack", "", (), f"{one}: {one.before} -> {one.after}")
        for one in edits
        if one.key.partition(".")[0] == SECTION
    ]
