"""Measures how long computing threads wait for a core because other threads use the same cores."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHORT_BELOW = 0.65
"""A thread that runs for less than this share of the time competes with training for a core. The share is one half if a
training thread uses the same core. Without training it is about 0.8 and not 1, because the thread also waits for its
siblings, which store chunks, and for the interpreter's lock."""
WEIGHT_OF_NEWEST = 0.15
"""A measurement lasts only milliseconds, so one measurement may include another thread's time slice."""


class CoreShare:
    """The share of time for which computing threads have a core, as a moving average.

    Args:
        thread_seconds: clock of the calling thread's CPU time.
        seconds: clock of elapsed time.
    """

    def __init__(
        self,
        thread_seconds: Callable[[], float] = time.thread_time,
        seconds: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._thread_seconds, self._seconds = thread_seconds, seconds
        self._lock = threading.Lock()
        self._share = 1.0

    @property
    def is_short(self) -> bool:
        """True if threads wait for a core."""
        return self._share < SHORT_BELOW

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the work in the context. The work must not wait for anything except a core."""
        cpu, began = self._thread_seconds(), self._seconds()
        yield
        elapsed = self._seconds() - began
        if elapsed > 0:
            share = min(1.0, (self._thread_seconds() - cpu) / elapsed)
            with self._lock:
                self._share += WEIGHT_OF_NEWEST * (share - self._share)
