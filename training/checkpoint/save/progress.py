"""Reports a save's progress every few seconds while it runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

logger = logging.getLogger(__name__)

LONG_SECONDS = 5
"""If a save blocks the training loop for longer than this, a breakdown of the time is logged."""
REPORT_SECONDS = 3.0
"""Time between reports. Progress of shorter saves is not reported."""


@dataclass(frozen=True)
class SaveProgress:
    """The progress of one rank's share of a save.

    Attributes:
        step: optimizer steps completed in the state being saved.
        store: URL of the store or tier that is being written.
        seconds: time since writing to that store began.
        bytes: plain bytes in the chunks that are already stored.
        total_bytes: plain bytes in the share.
        written_bytes: stored bytes written; usually fewer than ``bytes``, because existing chunks are not written
        again.
    """

    step: int
    store: str
    seconds: float
    bytes: int
    total_bytes: int
    written_bytes: int

    @property
    def written_bytes_per_second(self) -> float:
        """Average write rate."""
        return self.written_bytes / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        """Format the progress as a log line."""
        return (
            f"saving step {self.step} to {self.store}: {self.bytes / 1e6:.0f} of {self.total_bytes / 1e6:.0f} MB done "
            f"in {self.seconds:.0f} s, written at {self.written_bytes_per_second / 1e6:.1f} MB/s"
        )


class ProgressMeter:
    """Counts the chunks finished by a save's threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin(0, "", 0)

    def begin(self, step: int, store: str, total_bytes: int) -> None:
        """Reset the counters for writing this many plain bytes to one store."""
        with self._lock:
            self._began = time.monotonic()
            self._step, self._store, self._total_bytes = step, store, total_bytes
            self._bytes = self._written_bytes = 0

    def add(self, plain_bytes: int, written_bytes: int) -> None:
        """Count a finished chunk."""
        with self._lock:
            self._bytes += plain_bytes
            self._written_bytes += written_bytes

    def read(self) -> SaveProgress:
        """Return the current progress."""
        with self._lock:
            seconds = time.monotonic() - self._began
            return SaveProgress(self._step, self._store, seconds, self._bytes, self._total_bytes, self._written_bytes)


@contextmanager
def reported(meter: ProgressMeter, report: Callable[[SaveProgress], None]) -> Iterator[None]:
    """Log and report progress every few seconds until the context exits."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(REPORT_SECONDS):
            progress = meter.read()
            logger.info("%s", progress)
            report(progress)

    thread = threading.Thread(target=run, name="checkpoint-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def warn_if_long(step: int, times: list[float]) -> None:
    """If a save blocked the training loop for a long time, log the duration of each phase.

    Args:
        step: optimizer steps completed in the saved state.
        times: monotonic seconds at the four phases' boundaries.
    """
    if times[-1] - times[0] < LONG_SECONDS:
        return
    phases = ("layout", "allocation", "copy", "submission")
    durations = ", ".join(
        f"{phase} {end - begin:.1f} s" for phase, (begin, end) in zip(phases, pairwise(times), strict=True)
    )
    logger.warning(
        "saving step %d blocked training for %.1f s: %s; this machine may be short of memory or CPU time",
        step,
        times[-1] - times[0],
        durations,
    )
