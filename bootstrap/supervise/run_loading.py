"""Loads a run's code and dataset in the background, so that a long download does not delay the handling of notices."""

from __future__ import annotations

import logging
import threading
from typing import Literal

from bootstrap.boot_steps.code import check_code, fetch_code
from bootstrap.boot_steps.staging import stage_dataset
from bootstrap.context import Context
from bootstrap.documents import RunDocument
from bootstrap.errors import BootstrapError, PermanentError
from bootstrap.events.schema import RunLoadingFailed
from bootstrap.prepare.dataset import prepare_data

logger = logging.getLogger(__name__)

# A short S3 or network outage must not end a run. With doubling pauses, six attempts take two and a half minutes.
TRIES = 6
INITIAL_PAUSE_SECONDS = 5.0


class RunLoader:
    """Loads one run document at a time. Loading a newer document starts when the current work has ended."""

    def __init__(self, context: Context, wake: threading.Event) -> None:
        self._context = context
        self._wake = wake
        self._thread: threading.Thread | None = None
        self._current: str | None = None
        self._cancelled = threading.Event()
        self._is_permanent = False
        self.loaded_digest: str | None = None
        self.message = ""
        self.failure: Exception | None = None

    def state(self, digest: str) -> Literal["idle", "running", "failed"]:
        """Return the loading state for the run document with this digest."""
        if self._thread is not None and self._thread.is_alive():
            return "running"
        return "failed" if self._current == digest and self.loaded_digest != digest else "idle"

    def start(self, run: RunDocument) -> None:
        """Start loading `run`."""
        self._current = run.digest()
        self._cancelled.clear()
        self._is_permanent = False
        self._thread = threading.Thread(target=self._work, args=(run,), name="run loader", daemon=True)
        self._thread.start()

    def follow(self, digest: str) -> None:
        """Cancel loading any run document whose digest is not `digest`."""
        if self._current != digest:
            self._cancelled.set()

    def _work(self, run: RunDocument) -> None:
        pause_seconds = INITIAL_PAUSE_SECONDS
        try:
            for attempt in range(1, TRIES + 1):
                if self._load(run) or self._is_permanent or attempt == TRIES or self._cancelled.wait(pause_seconds):
                    return
                pause_seconds *= 2
        except Exception as error:  # noqa: BLE001 top level of a thread: the main loop raises it
            self.failure = error
        finally:
            self._wake.set()

    def _load(self, run: RunDocument) -> bool:
        try:
            fetch_code(self._context, run)
            check_code(self._context, run)
            stored = None if run.prepare is None else prepare_data(self._context, run, self._cancelled.is_set)
            stage_dataset(self._context, run, stored)
        except (BootstrapError, OSError) as error:
            remedy = getattr(error, "remedy", "")
            self.message = f"{error}; {remedy}" if remedy else str(error)
            self._is_permanent = isinstance(error, PermanentError)
            self._context.events.emit(RunLoadingFailed(run.digest(), self.message))
            return False
        self.loaded_digest = run.digest()
        return True
