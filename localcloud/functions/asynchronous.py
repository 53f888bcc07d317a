"""Queues asynchronous invocations and retries them after errors. Events that keep failing are recorded and dropped."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

_logger = logging.getLogger(__name__)

LOCAL_RETRY_DELAYS_SECONDS = (1.0, 2.0)
"""AWS waits one minute, then two (https://docs.aws.amazon.com/lambda/latest/dg/invocation-async-error-handling.html,
read 2026-11). The embedded cloud uses shorter delays."""
MAXIMUM_RETRY_ATTEMPTS = 2


@dataclass(frozen=True)
class QueuedInvocation:
    """An event queued for a function. `attempt` starts at 0, and all attempts have the same request ID."""

    function: str
    qualifier: str | None
    payload: str
    request_id: str
    attempt: int = 0


Verdict = Literal["done", "retry"]


class AsynchronousQueue:
    """A function's event queue, which runs at most `concurrency()` events at a time, oldest first."""

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
        """Queue an event."""
        with self._lock:
            if self._closed:
                return
            self._waiting.append(invocation)
            if self._active >= max(1, self._concurrency()):
                return
            self._active += 1
        threading.Thread(target=self._drain, name=f"function-async-{invocation.function}", daemon=True).start()

    def close(self) -> None:
        """Drop the queued events."""
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
            except Exception:  # top level of the thread: one failing event must not stop the queue
                _logger.exception("%s: dropped event %s", invocation.function, invocation.request_id)
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
