"""Waits for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait(condition: Callable[[], T], limit_seconds: float) -> T:
    """Return what the condition gives as soon as that is true; fail when it is not in time."""
    deadline = time.monotonic() + limit_seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)  # between two looks at what tells nobody when it comes about
    return found
