"""Fetches a run's code and dataset beside the main loop, so that a notice is seen in the middle of a long staging."""

from __future__ import annotations

import logging
import threading
from typing import Literal

from bootstrap.documents import RunDocument
from bootstrap.errors import BootstrapError, LastingError
from bootstrap.plan import Context
from bootstrap.prepared.dataset import prepare_data
from bootstrap.steps.code import check_code, fetch_code
from bootstrap.steps.staging import stage_dataset

logger = logging.getLogger(__name__)

# An outage of S3 or of the network must not end a run: with the pauses doubling, two and a half minutes go by.
TRIES = 6
FIRST_PAUSE_SECONDS = 5.0


class Preparation:
    """Prepares one run document at a time; a newer one takes over when the work under way has ended."""

    def __init__(self, context: Context, wake: threading.Event) -> None:
        self._context = context
        self._wake = wake
        self._thread: threading.Thread | None = None
        self._worked_on: str | None = None
        self._unwanted = threading.Event()
        self._lasts = False
        self.prepared_digest: str | None = None
        self.message = ""
        self.failure: Exception | None = None

    def state(self, digest: str) -> Literal["idle", "running", "failed"]:
        """Return how far it is with the run document of this digest."""
        if self._thread is not None and self._thread.is_alive():
            return "running"
        return "failed" if self._worked_on == digest and self.prepared_digest != digest else "idle"

    def start(self, run: RunDocument) -> None:
        """Begin to prepare `run`."""
        self._worked_on = run.digest()
        self._unwanted.clear()
        self._lasts = False
        self._thread = threading.Thread(target=self._work, args=(run,), name="preparation", daemon=True)
        self._thread.start()

    def follow(self, digest: str) -> None:
        """Give up further tries with any other run document than that of `digest`."""
        if self._worked_on != digest:
            self._unwanted.set()

    def _work(self, run: RunDocument) -> None:
        pause_seconds = FIRST_PAUSE_SECONDS
        try:
            for attempt in range(1, TRIES + 1):
                if self._prepared(run) or self._lasts or attempt == TRIES or self._unwanted.wait(pause_seconds):
                    return
                pause_seconds *= 2
        except Exception as error:  # noqa: BLE001 top level of a thread: the main loop raises it
            self.failure = error
        finally:
            self._wake.set()

    def _prepared(self, run: RunDocument) -> bool:
        try:
            fetch_code(self._context, run)
            check_code(self._context, run)
            stored = None if run.prepare is None else prepare_data(self._context, run, self._unwanted.is_set)
            stage_dataset(self._context, run, stored)
        except (BootstrapError, OSError) as error:
            remedy = getattr(error, "remedy", "")
            self.message = f"{error}; {remedy}" if remedy else str(error)
            self._lasts = isinstance(error, LastingError)
            self._context.events.emit("run_preparation_failed", run_digest=run.digest(), message=self.message)
            return False
        self.prepared_digest = run.digest()
        return True
