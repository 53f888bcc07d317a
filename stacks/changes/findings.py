"""A finding of a review: a risk to data, a change to permissions or network access, or a change to approve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stacks.changes.templates.template_set import PropertyPath
from stacks.changes.updates.resources import Key

Area = Literal["data", "iam", "network", "approval"]
Direction = Literal["at risk", "broadened", "narrowed", "kept", "needs approval"]
"""The direction of a finding: data is at risk or kept, and permissions and network access are broadened or narrowed.
A change needs approval if the review does not recognize it as safe."""


@dataclass(frozen=True)
class Finding:
    """A finding about one property of one resource."""

    area: Area
    direction: Direction
    stack: str
    logical_id: str
    path: PropertyPath
    text: str

    @property
    def key(self) -> Key:
        """The resource's stack id and logical id."""
        return self.stack, self.logical_id
