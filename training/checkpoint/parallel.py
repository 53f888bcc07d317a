"""Many transfers at once, which fail as one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def results_of(pool: ThreadPoolExecutor, pending: Sequence[Future[T]]) -> list[T]:
    """Wait for all; at the first failure or interrupt those that have not begun never do, and it is raised."""
    try:
        return [future.result() for future in pending]
    # Whatever it is, an interrupt included: it is raised again as soon as no transfer is under way.
    except BaseException:
        pool.shutdown(wait=True, cancel_futures=True)
        raise
