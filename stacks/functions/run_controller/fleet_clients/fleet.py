"""The interface of a fleet client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .. import policy
from ..fleet_back_ends import Backend


@dataclass(frozen=True)
class FleetIdentity:
    """A fleet's back end, its id or its groups' names, its maximum size, and its number of non-spot instances."""

    backend: Backend
    fleet_id: str
    maximum: int
    on_demand_base: int


class Fleet(Protocol):
    """Reads and changes one fleet."""

    def describe(self) -> policy.FleetState | None:
        """Return the fleet's current state, or None if the fleet does not exist."""

    def launch_failures(self, since_unix_seconds: float) -> tuple[policy.LaunchFailure, ...]:
        """Return the launches that failed after the last successful launch and after the given time, newest first."""

    def apply(self, action: policy.Action) -> str:
        """Change the fleet. Return why nothing was left to change, such as an instance that has left, or "".

        Raises:
            botocore.exceptions.ClientError: AWS rejected the call.
            TypeError: The back end does not support the action.
        """
