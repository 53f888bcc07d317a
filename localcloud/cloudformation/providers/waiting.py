"""Waits until a resource has settled, with a deadline. Not for pacing: a wait ends on a condition or in a failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ..provider import ResourceFailure

POLL_SECONDS = 0.2
SETTLE_SECONDS = 900.0

T = TypeVar("T")


def wait_for(
    probe: Callable[[], T | None],
    what: str,
    *,
    timeout_seconds: float = SETTLE_SECONDS,
    poll_seconds: float = POLL_SECONDS,
) -> T:
    """Return the first answer of `probe` that is neither None nor False.

    Raises:
        ResourceFailure: there was none within `timeout_seconds`; the message names `what` was waited for.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        answer = probe()
        if answer is not None and answer is not False:
            return answer
        if time.monotonic() >= deadline:
            raise ResourceFailure(f"{what}: not within {timeout_seconds:g} seconds")
        time.sleep(poll_seconds)
