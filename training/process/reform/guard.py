"""Limits a change: a process that has not finished in time ends, whatever it is waiting for.

Each wait in a change has its own limit. But a sum of limits is no limit, and some waits have none: a read from the
store of a machine that has been cut off, a destructor that joins threads, a GPU that does not finish. The waits of
torch release the interpreter lock, so a thread can end the process.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from training.process.outcome import EXIT_CODES, Outcome

logger = logging.getLogger(__name__)


class Guard:
    """A context that writes this rank's outcome and ends the process if it is still open at the deadline.

    Args:
        ending: the outcome to write, except for the message.
        run_directory: the run directory.
        deadline: the end, in seconds of `time.monotonic()`.
    """

    def __init__(self, ending: Outcome, run_directory: Path, deadline: float) -> None:
        self._ending, self._directory, self._deadline = ending, run_directory, deadline
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, name="guard of a change", daemon=True)

    def __enter__(self) -> Guard:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def extend(self, deadline: float) -> None:
        """Set a later deadline."""
        with self._changed:
            self._deadline = deadline
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._is_closed:
                left_seconds = self._deadline - time.monotonic()
                if left_seconds <= 0:
                    self._end_process()
                self._changed.wait(left_seconds)

    def _end_process(self) -> None:
        end_process(self._ending, self._directory, "the change did not end in time")


def end_process(ending: Outcome, run_directory: Path, message: str) -> NoReturn:
    """Write the stacks of all threads to the log, write the outcome with this message, and end the process."""
    faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
    message = f"{message}; the log has the stacks of all threads"
    logger.error("%s", message)
    try:
        replace(ending, message=message).write(run_directory)
    finally:
        os._exit(EXIT_CODES[ending.outcome])
