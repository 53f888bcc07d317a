"""Decides how long nodes that are ready to join a running gang wait for others: a pure function.

Each change pauses all members, so two joins together cost half as much as one after the other. But while a ready node
waits, it does not train. It waits until its own loss equals what the others would lose with one more change, and only
if another node is loading the run. The wait is then never worse than twice the best choice, which would need to know
when the other node is ready. The replay of spot traces (benchmarks/goodput/) uses the same function.
"""

from __future__ import annotations

PAUSE_SECONDS = 0.9
"""Time for which a join pauses the members, with a small model (docs/verification.md)."""
LONGEST_WAIT_SECONDS = 5.0
"""Half of the limit for a change, so that an election still has time."""


def longest_wait_seconds(ready: int, members: int, pause_seconds: float = PAUSE_SECONDS) -> float:
    """Return the longest wait for nodes that are still loading.

    Args:
        ready: number of nodes that are ready to join.
        members: number of nodes that train.
        pause_seconds: time for which a join pauses the members.
    """
    return min(LONGEST_WAIT_SECONDS, members * pause_seconds / ready)


def waits_for_more(ready: int, loading: int, members: int, waited_seconds: float) -> bool:
    """Return True if the nodes that are ready to join should wait for those that are loading."""
    return ready > 0 and loading > 0 and waited_seconds < longest_wait_seconds(ready, members)
