"""Waiting for other threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


def wait(condition: Callable[[], T], limit_seconds: float) -> T:
    """Return the value of the condition once it is true; fail after the time limit."""
    deadline = time.monotonic() + limit_seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)  # polling: the condition has no notification
    return found


def wait_or_fail(condition: Callable[[], T], limit_seconds: float, what: str, logs: Callable[[], str]) -> T:
    """Return the value of the condition once it is true; after the time limit, fail with the logs."""
    deadline = time.monotonic() + limit_seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)  # polling: the condition has no notification
    pytest.fail(f"waited {limit_seconds} s for: {what}\n{logs()}")
