"""How far a save is, told every few seconds while it is under way."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

logger = logging.getLogger(__name__)

REPORT_SECONDS = 3.0
"""Time between two reports; a save that takes less makes none."""


@dataclass(frozen=True)
class SaveProgress:
    """How far one rank's share of a save is.

    Attributes:
        step: optimizer steps that it holds.
        store: URL of the place, or tier, that is being written.
        seconds: since the writing to that place began.
        bytes: plain bytes of which the chunks are there.
        total_bytes: plain bytes of the share.
        written_bytes: stored bytes that were written; less than that, for what is there already is not written again.
    """

    step: int
    store: str
    seconds: float
    bytes: int
    total_bytes: int
    written_bytes: int

    @property
    def written_bytes_per_second(self) -> float:
        """Rate of writing since it began."""
        return self.written_bytes / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        """One line of a log."""
        return (
            f"saving step {self.step} to {self.store}: {self.bytes / 1e6:.0f} of {self.total_bytes / 1e6:.0f} MB done "
            f"in {self.seconds:.0f} s, written at {self.written_bytes_per_second / 1e6:.1f} MB/s"
        )


class ProgressMeter:
    """Counts what the threads of a save have done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin(0, "", 0)

    def begin(self, step: int, store: str, total_bytes: int) -> None:
        """Start to count anew, for the writing of so many plain bytes to one place."""
        with self._lock:
            self._began = time.monotonic()
            self._step, self._store, self._total_bytes = step, store, total_bytes
            self._bytes = self._written_bytes = 0

    def add(self, plain_bytes: int, written_bytes: int) -> None:
        """Count a chunk that is there now."""
        with self._lock:
            self._bytes += plain_bytes
            self._written_bytes += written_bytes

    def read(self) -> SaveProgress:
        """How far it is."""
        with self._lock:
            seconds = time.monotonic() - self._began
            return SaveProgress(self._step, self._store, seconds, self._bytes, self._total_bytes, self._written_bytes)


@contextmanager
def reported(meter: ProgressMeter, tell: Callable[[SaveProgress], None]) -> Iterator[None]:
    """Log how far it is, and tell, every few seconds for as long as this context lasts; never after its end."""
    done = threading.Event()

    def report() -> None:
        while not done.wait(REPORT_SECONDS):
            progress = meter.read()
            logger.info("%s", progress)
            tell(progress)

    thread = threading.Thread(target=report, name="checkpoint-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
