"""A thread that reconciles a service's objects when they change and when deadlines pass."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

_logger = logging.getLogger(__name__)
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 2.0, 30.0
_PAUSE_AFTER_FAILURE_SECONDS = 1.0

T = TypeVar("T")


class ControlLoop(Generic[T]):
    """Calls `reconcile` for each object in `items()`, then sleeps until `wake` is set or the next deadline passes.

    If reconciling an item fails, the failure is logged and reported to `failed`; the other items are still reconciled.

    Args:
        name: Name of the thread, also used in log lines.
        items: Returns the objects to reconcile in each round.
        reconcile: Brings one object to its desired state.
        seconds_to_next: Returns the seconds until the next deadline, or None to sleep until woken.
        failed: Called with each object whose reconciliation raised an exception.
        wake: Event that callers set after a change.
    """

    def __init__(
        self, name: str, items: Callable[[], Iterable[T]], reconcile: Callable[[T], None],
        seconds_to_next: Callable[[], float | None], *, failed: Callable[[T], None] = lambda item: None,
        wake: threading.Event | None = None,
    ) -> None:  # fmt: skip
        self._name = name
        self._items = items
        self._reconcile = reconcile
        self._seconds_to_next = seconds_to_next
        self._failed = failed
        self._wake = wake or threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called. A long reconciliation should then return early."""
        return self._closed.is_set()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Start a round now."""
        self._wake.set()

    def close(self) -> None:
        """Stop the thread and wait for it to end."""
        self._closed.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self.is_closed:
            self._wake.clear()
            try:
                self._reconcile_all()
                pause = self._seconds_to_next()
            except Exception:  # noqa: BLE001 - top level of the thread
                _logger.exception("%s: reconciliation failed", self._name)
                pause = _PAUSE_AFTER_FAILURE_SECONDS
            self._wake.wait(pause)

    def _reconcile_all(self) -> None:
        for item in self._items():
            if self.is_closed:
                return
            try:
                self._reconcile(item)
            except Exception:  # noqa: BLE001 - one item's failure must not stop the others
                _logger.exception("%s: reconciling %s failed", self._name, item)
                self._failed(item)


def retry_seconds(failures: int) -> float:
    """Return the delay before the next attempt, which doubles with each failure up to MAX_RETRY_SECONDS."""
    doublings = min(failures - 1, 10)  # bounded, since the number of failures is unbounded
    return min(FIRST_RETRY_SECONDS * 2.0**doublings, MAX_RETRY_SECONDS)
