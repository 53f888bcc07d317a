"""Waits for the effect of a command, and prints progress to standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

POLL_SECONDS = 2.0
SILENT_SECONDS = 4.0
"""Longest time without a line of progress. Together with the duration of a check, it stays below 5 s."""


@dataclass(frozen=True)
class Look:
    """The result of one check of a run: whether the wait is over, and one line of text."""

    is_over: bool
    text: str


def wait(
    look: Callable[[], Look],
    limit_seconds: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Poll the run until the wait is over. Return False if the time limit passes first.

    Each new text is printed at once. An unchanged text is printed again, with the elapsed time, before 5 s pass.
    """
    started = printed = clock()
    last = ""
    while True:
        found = look()
        now = clock()
        if found.text != last:
            print(found.text, file=sys.stderr, flush=True)
            last, printed = found.text, now
        elif now - printed + POLL_SECONDS > SILENT_SECONDS:
            print(f"{found.text} ({now - started:.0f} s)", file=sys.stderr, flush=True)
            printed = now
        if found.is_over:
            return True
        if now - started >= limit_seconds:
            return False
        sleep(POLL_SECONDS)
