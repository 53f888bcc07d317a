"""Manages a function's warm processes, up to its concurrency limit. Each process runs one invocation at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from localcloud.api import Credentials
from localcloud.functions.definition import FunctionDefinition
from localcloud.functions.errors import Throttled
from localcloud.functions.sandbox import Sandbox
from localcloud.functions.sessions import outlasts


@dataclass
class WarmSandbox:
    """A process and the inputs that it was started with. `lines` collects the running invocation's output."""

    sandbox: Sandbox
    definition: FunctionDefinition
    credentials: Credentials
    lines: list[str]
    write_line: Callable[[str], None]
    initialized: bool = False

    def fits(self, definition: FunctionDefinition) -> bool:
        """Return True if this process can serve the current definition."""
        return (
            self.definition == definition
            and self.sandbox.is_alive()
            and outlasts(self.credentials, definition.timeout_seconds)
        )


class FunctionPool:
    """Provides processes for invocations. Replaces processes that have exited or are outdated."""

    def __init__(self, start: Callable[[FunctionDefinition], WarmSandbox]) -> None:
        self._start = start
        self._condition = threading.Condition()
        self._idle: list[WarmSandbox] = []
        self._lent: dict[int, WarmSandbox] = {}
        self._starting = 0
        self._closed = False

    def acquire(self, definition: FunctionDefinition, limit: int, wait_seconds: float) -> WarmSandbox:
        """Return a process for one invocation, waiting up to `wait_seconds` for a free slot.

        Raises:
            Throttled: No slot became free in time, or the pool is closed.
            SandboxFailed: A new process cannot be started.
            ApiError: Lambda cannot assume the function's role, or the code was deleted.
            PackageRefused: The package cannot be unpacked.
        """
        deadline = time.monotonic() + wait_seconds
        with self._condition:
            while not self._closed and len(self._lent) + self._starting >= limit:
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0 or not self._condition.wait(left_seconds):
                    raise Throttled(f"{definition.name}: all {limit} slots are in use")
            if self._closed:
                raise Throttled(f"{definition.name}: the function was deleted, or the embedded cloud is closing")
            same_version = [warm for warm in self._idle if warm.definition.version == definition.version]
            stale = [warm for warm in same_version if not warm.fits(definition)]
            fresh = [warm for warm in same_version if warm.fits(definition)]
            self._idle = [warm for warm in self._idle if warm not in stale]
            found = fresh[-1] if fresh else None
            if found is not None:
                self._idle.remove(found)
                self._lent[id(found)] = found
            else:
                self._starting += 1
        for warm in stale:
            warm.sandbox.close()
        return found if found is not None else self._begin(definition)

    def release(self, warm: WarmSandbox) -> None:
        """Return a process to the pool, or close it if it has exited or the pool is closed."""
        with self._condition:
            self._lent.pop(id(warm), None)
            keep = not self._closed and warm.sandbox.is_alive()
            if keep:
                self._idle.append(warm)
            self._condition.notify()
        if not keep:
            warm.sandbox.close()

    def close(self) -> None:
        """Kill all processes, including busy ones."""
        with self._condition:
            self._closed = True
            doomed = [*self._idle, *self._lent.values()]
            self._idle = []
            self._condition.notify_all()
        for warm in doomed:
            warm.sandbox.close()

    def pids(self) -> list[int]:
        """Return the IDs of the live processes."""
        with self._condition:
            return [warm.sandbox.pid for warm in [*self._idle, *self._lent.values()] if warm.sandbox.is_alive()]

    def _begin(self, definition: FunctionDefinition) -> WarmSandbox:
        try:
            warm = self._start(definition)
        except BaseException:
            with self._condition:
                self._starting -= 1
                self._condition.notify()
            raise
        with self._condition:
            self._starting -= 1
            self._lent[id(warm)] = warm
            closed = self._closed
        if closed:
            warm.sandbox.close()
        return warm
