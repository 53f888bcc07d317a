"""Measures the share of this process's cores that other processes use."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

WINDOW_SECONDS = 0.25
"""Shortest time for a measurement. The kernel counts in steps of 10 ms."""
LEAST_SHARE = 0.75
"""Encoding threads compete with training if other processes leave them less than this share of the cores they need. If
one training thread runs on each core, the share is one half."""


def busy_seconds() -> float:
    """Return the CPU time used by all processes on this process's cores since boot; 0 without Linux's /proc/stat."""
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    try:
        with Path("/proc/stat").open(encoding="ascii") as file:
            for name, *counts in map(str.split, file):
                if name in cores:
                    user, nice, system = map(int, counts[:3])
                    ticks += user + nice + system
    except FileNotFoundError:
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK")


class OtherLoad:
    """Reports whether other processes use cores that this process's encoding threads need.

    The encoding threads' waiting time is not a suitable measure, because they also wait for each other.

    Args:
        threads: number of encoding threads.
        busy: CPU seconds of all processes on these cores.
        own: CPU seconds of this process.
        clock: elapsed seconds.
    """

    def __init__(
        self,
        threads: int,
        busy: Callable[[], float] = busy_seconds,
        own: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        cores = len(os.sched_getaffinity(0))
        self._limit = cores - LEAST_SHARE * min(threads, cores)
        self._busy, self._own, self._clock = busy, own, clock
        self._lock = threading.Lock()
        self._began = self._now()
        self._is_high = False

    @property
    def is_high(self) -> bool:
        """True if other processes use needed cores, according to the latest measurement."""
        with self._lock:
            now = self._now()
            elapsed, busy, own = (new - old for new, old in zip(now, self._began, strict=True))
            if elapsed >= WINDOW_SECONDS:
                self._is_high = (busy - own) / elapsed > self._limit
                self._began = now
            return self._is_high

    def _now(self) -> tuple[float, float, float]:
        return self._clock(), self._busy(), self._own()
