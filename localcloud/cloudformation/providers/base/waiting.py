"""Waits for a resource to reach a state, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from localcloud.cloudformation.provider import ResourceFailure

POLL_SECONDS = 0.2
READY_TIMEOUT_SECONDS = 900.0

T = TypeVar("T")


def wait_for(
    probe: Callable[[], T | None],
    what: str,
    *,
    timeout_seconds: float = READY_TIMEOUT_SECONDS,
    poll_seconds: float = POLL_SECONDS,
) -> T:
    """Call `probe` until it returns a value other than None and False, and return that value.

    Raises:
        ResourceFailure: The timeout has expired; the message contains `what`, the awaited state.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        answer = probe()
        if answer is not None and answer is not False:
            return answer
        if time.monotonic() >= deadline:
            raise ResourceFailure(f"timed out after {timeout_seconds:g} seconds waiting for {what}")
        time.sleep(poll_seconds)
