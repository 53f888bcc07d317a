"""Ends this rank's waits for collectives whose connections are broken.

Gloo does not end all of them. It reports a lost connection only to operations that it has not begun: a message that has
been received or sent in part, or whose first write has failed, waits for its timeout
(https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/pair.cc, `signalException` and `sendAsyncMode`; 2026-11).
That happens if the connections are shut down while all ranks exchange data, and if a rank dies while it sends a large
message. No call of torch ends such a wait, so the rank gives up waiting: the collective's threads and buffers remain
until its timeout.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

POLL = timedelta(seconds=0.1)
"""Longest time between the break of the connections and the end of a wait."""


class Breakage:
    """Whether the connections of the current process groups are broken. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._exchanges: dict[int, tuple[Any, Tensor]] = {}
        self._count = 0

    def mark(self, reason: str) -> None:
        """End all waits, now and until :meth:`clear`. Call it after the connections have been shut down."""
        with self._lock:
            self._reason = self._reason or reason
            released = list(self._exchanges.values())
            self._exchanges.clear()
        for future, tensor in released:
            future.set_result(tensor)

    def clear(self) -> None:
        """Allow collectives again, after the process groups have been destroyed."""
        with self._lock:
            self._reason = None

    def check(self) -> None:
        """Raise DistNetworkError if the connections are broken."""
        if self._reason is not None:
            raise dist.DistNetworkError(f"the gang's connections are broken: {self._reason}")

    def wait(self, work: dist.Work) -> None:
        """Wait for a collective of host tensors.

        Raises:
            DistNetworkError: The connections are broken.
            RuntimeError: The collective has failed.
        """
        while True:
            try:
                work.wait(POLL)
            except RuntimeError:
                if work.is_completed():  # it has failed, or has completed since
                    work.wait()
                    return
                self.check()
            else:
                return

    def wait_for_message(self, work: dist.Work) -> None:
        """Wait for a message between two ranks. Gloo closes the connection if a wait for a message times out.

        Raises:
            DistNetworkError: The connections are broken.
            RuntimeError: The transfer has failed.
        """
        failures: list[Exception] = []
        waiting = threading.Thread(target=_wait, args=(work, failures), name="waits for a message", daemon=True)
        waiting.start()
        while waiting.is_alive():
            waiting.join(POLL.total_seconds())
            if waiting.is_alive():
                self.check()
        if failures:
            raise failures[0]

    def exchange(self, hook: Callable[[], Any], tensor: Tensor) -> Any:
        """Return the future of a gradient exchange, which DDP waits for.

        If the exchange fails or the connections break, the future completes with `tensor`, the gradients of this rank
        alone, and the next collective raises the error: the step's gate, so these gradients are not applied.

        Args:
            hook: starts the exchange, and returns torch's future.
            tensor: the gradients.
        """
        future: Any = torch.futures.Future()
        with self._lock:
            is_broken = self._reason is not None
            self._count += 1
            number = self._count
            if not is_broken:
                self._exchanges[number] = future, tensor
        if is_broken:
            future.set_result(tensor)
            return future
        try:
            hook().add_done_callback(partial(self._complete, number))
        except RuntimeError as error:
            self.mark(str(error))
        return future

    def _complete(self, number: int, exchanged: Any) -> None:
        failure = None
        try:
            value = exchanged.value()
        except RuntimeError as error:
            failure = str(error)
        if failure is not None:
            self.mark(failure)
            return
        with self._lock:
            found = self._exchanges.pop(number, None)
        if found is not None:
            found[0].set_result(value)


def _wait(work: dist.Work, failures: list[Exception]) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        failures.append(error)


def destroy(groups: list[Any], limit_seconds: float) -> int:
    """Drop the last references to process groups; return the number of those that still wait for a collective.

    The destructor of a process group waits for its collectives. Each runs in a thread, which ends with them.

    Args:
        groups: the references, which are removed from the list.
        limit_seconds: time to wait for the destructors.
    """
    deadline = time.monotonic() + limit_seconds
    threads = []
    while groups:
        last = [groups.pop()]
        threads.append(threading.Thread(target=last.clear, name="destroys a process group", daemon=True))
        threads[-1].start()
    for each in threads:
        each.join(max(0.0, deadline - time.monotonic()))
    return sum(each.is_alive() for each in threads)
