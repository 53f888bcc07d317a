"""The supervisor's intervals and timeouts, their limits, and the rule that relates them.

Standard library only. The defaults are in `stacks/config/heartbeat.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bootstrap.documents.decoding import AtLeast
from bootstrap.errors import Problem

PING_SECONDS = 1.0
"""Interval between a supervisor's pings to each of its peers."""
MISSING_PING_SECONDS = 0.25
"""Interval after a missing reply, to distinguish a lost datagram from a lost machine sooner."""
SHORTEST_DOUBT_SECONDS = 2.75
"""Lower bound of `doubt_seconds`: a machine that stalls for up to 2.5 s is never considered lost."""
MIN_POLL_SECONDS, MIN_HEARTBEAT_SECONDS, MIN_HEARTBEAT_TIMEOUT_SECONDS = 0.05, 0.1, 0.5
MIN_BEATS_PER_TIMEOUT = 2
"""Minimum ratio of timeout to interval. With fewer heartbeats per timeout, a late heartbeat looks like a lost node."""


@dataclass(frozen=True)
class SuperviseTimings:
    """The supervisor's intervals and timeouts.

    Attributes:
        poll_seconds: Interval for reading instance metadata and control records.
        heartbeat_seconds: Interval between this node's heartbeats.
        heartbeat_timeout_seconds: A peer is lost if it does not send a heartbeat for this long.
        gang_timeout_seconds: A gang smaller than the run's `nodes` starts after this wait.
        boot_timeout_seconds: A boot that takes longer fails, and the instance shuts down.
    """

    poll_seconds: Annotated[float, AtLeast(MIN_POLL_SECONDS)]
    heartbeat_seconds: Annotated[float, AtLeast(MIN_HEARTBEAT_SECONDS)]
    heartbeat_timeout_seconds: Annotated[float, AtLeast(MIN_HEARTBEAT_TIMEOUT_SECONDS)]
    gang_timeout_seconds: Annotated[float, AtLeast(1)]
    boot_timeout_seconds: Annotated[float, AtLeast(1)]

    @property
    def doubt_seconds(self) -> float:
        """Return the time without a heartbeat after which a peer that does not respond to pings is lost.

        This is three tenths of the timeout, or longer if needed to allow for a short stall, and for a heartbeat that
        arrives late by a quarter of its interval. Both signals, which use different paths, must be missing for this
        time.
        """
        doubt_seconds = max(0.3 * self.heartbeat_timeout_seconds, 1.25 * self.heartbeat_seconds, SHORTEST_DOUBT_SECONDS)
        return min(doubt_seconds, self.heartbeat_timeout_seconds)

    @property
    def verdict_seconds(self) -> float:
        """Return the time that a node waits for its peers' outcomes after a generation."""
        return 2 * self.heartbeat_timeout_seconds

    @property
    def claim_timeout_seconds(self) -> float:
        """Return the time without a heartbeat after which another node takes over data preparation.

        Taking over hours of work too early would cost more than waiting.
        """
        return 4 * self.heartbeat_timeout_seconds


def heartbeat_problem(heartbeat_seconds: float, heartbeat_timeout_seconds: float) -> Problem | None:
    """Return a problem if the timeout is too short for the interval, else None."""
    if heartbeat_timeout_seconds >= MIN_BEATS_PER_TIMEOUT * heartbeat_seconds:
        return None
    return Problem(
        "heartbeat_timeout_seconds",
        f"{heartbeat_timeout_seconds:g}",
        f"must be at least {MIN_BEATS_PER_TIMEOUT} times heartbeat_seconds ({heartbeat_seconds:g}), or one late "
        "heartbeat looks like a lost node",
        "raise it, or lower heartbeat_seconds",
    )
