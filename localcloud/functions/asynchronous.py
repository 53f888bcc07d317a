"""Invocations that nobody waits for: queued, retried after errors, then given up with a record."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

_logger = logging.getLogger(__name__)

LOCAL_RETRY_DELAYS_SECONDS = (1.0, 2.0)
"""AWS waits one minute, then two (https://docs.aws.amazon.com/lambda/latest/dg/invocation-async-error-handling.html,
read 2026-11); a rehearsal is shorter."""
MAXIMUM_RETRY_ATTEMPTS = 2
MAXIMUM_EVENT_AGE_SECONDS = 21600


@dataclass(frozen=True)
class RetryPolicy:
    """What the function's EventInvokeConfig says."""

    attempts: int = MAXIMUM_RETRY_ATTEMPTS
    event_age_seconds: int = MAXIMUM_EVENT_AGE_SECONDS


@dataclass(frozen=True)
class QueuedInvocation:
    """One event for a function; `attempt` counts from 0 and keeps the request id."""

    function: str
    qualifier: str | None
    payload: str
    request_id: str
    attempt: int = 0
    accepted_monotonic_seconds: float = field(default_factory=time.monotonic)

    def age_seconds(self) -> float:
        """Return the seconds since the event was accepted."""
        return time.monotonic() - self.accepted_monotonic_seconds


Verdict = Literal["done", "retry"]


class AsynchronousQueue:
    """The queue of one function; at most `concurrency()` of its events run at a time, oldest first."""

    def __init__(
        self,
        run: Callable[[QueuedInvocation], Verdict],
        concurrency: Callable[[], int],
        delays_seconds: Sequence[float] = LOCAL_RETRY_DELAYS_SECONDS,
    ) -> None:
        self._run_one = run
        self._concurrency = concurrency
        self._delays_seconds = tuple(delays_seconds)
        self._lock = threading.Lock()
        self._waiting: deque[QueuedInvocation] = deque()
        self._timers: set[threading.Timer] = set()
        self._active = 0
        self._closed = False

    def put(self, invocation: QueuedInvocation) -> None:
        """Queue an event; returns at once."""
        with self._lock:
            if self._closed:
                return
            self._waiting.append(invocation)
            if self._active >= max(1, self._concurrency()):
                return
            self._active += 1
        threading.Thread(target=self._drain, name=f"function-async-{invocation.function}", daemon=True).start()

    def close(self) -> None:
        """Forget what waits."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            timers = list(self._timers)
        for timer in timers:
            timer.cancel()

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._active -= 1
                    return
                invocation = self._waiting.popleft()
            try:
                verdict = self._run_one(invocation)
            except Exception:  # a thread's top level: one event's failure must not stop the queue
                _logger.exception("%s: event %s is lost", invocation.function, invocation.request_id)
                continue
            if verdict == "retry":
                self._put_later(replace(invocation, attempt=invocation.attempt + 1))

    def _put_later(self, invocation: QueuedInvocation) -> None:
        delay_seconds = self._delays_seconds[min(invocation.attempt, len(self._delays_seconds)) - 1]
        timer = threading.Timer(delay_seconds, self._put_due, [invocation])
        timer.daemon = True
        with self._lock:
            if self._closed:
                return
            self._timers.add(timer)
        timer.start()

    def _put_due(self, invocation: QueuedInvocation) -> None:
        with self._lock:
            me = threading.current_thread()
            self._timers = {timer for timer in self._timers if timer.is_alive() and timer is not me}
        self.put(invocation)
