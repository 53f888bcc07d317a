"""Changes to the delivery section of the deployment file. The review itself relies on this section."""

from __future__ import annotations

from collections.abc import Sequence

from stacks.changes.causes import Edit
from stacks.changes.findings import Finding

SECTION = "delivery"


def delivery_findings(edits: Sequence[Edit]) -> list[Finding]:
    """Return the edits to the delivery section, which determines what is deployed, its source and its approvers."""
    return [
        Finding("approval", "needs approval", "PipelineStack", "", (), f"{one}: {one.before} -> {one.after}")
        for one in edits
        if one.key.partition(".")[0] == SECTION
    ]
