"""One thing that a reviewer should know of a change: where it is, and whether it puts at risk or opens something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stacks.changes.resources import Key
from stacks.changes.schemas import PropertyPath

Area = Literal["data", "iam", "network"]
Direction = Literal["at risk", "broadened", "narrowed", "kept"]
"""Data is at risk or kept; rights and network are broadened or narrowed."""


@dataclass(frozen=True)
class Finding:
    """A verdict about one place in one resource, in words."""

    area: Area
    direction: Direction
    stack: str
    logical_id: str
    path: PropertyPath
    text: str

    @property
    def key(self) -> Key:
        """Where the resource is."""
        return self.stack, self.logical_id
