"""Runs a function process: starts it, sends it one invocation at a time, and kills it with its process group."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from localcloud.functions.errors import SandboxFailed
from localcloud.functions.runtime_process import LOG_BOUNDARY

INIT_LIMIT_SECONDS = 60.0
"""AWS allows 10 s for initialization before the timeout starts
(https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html, read 2026-11). In the embedded cloud,
functions share a few cores with training, and importing boto3 alone may take 10 s."""
LOG_SETTLE_SECONDS = 1.0
RUNTIME = Path(__file__).with_name("runtime_process.py")


@dataclass(frozen=True)
class Outcome:
    """The outcome of an invocation. `payload` is JSON text: the result or the error object."""

    kind: Literal["succeeded", "failed", "timed_out", "exited"]
    payload: str
    peak_memory_mib: int = 0


class Sandbox:
    """A warm function process."""

    def __init__(
        self,
        environment: Mapping[str, str],
        directory: Path,
        write_line: Callable[[str], None],
        on_end: Callable[[], None],
        user: int | None = None,
    ) -> None:
        """Start the process in `directory`, as `user` or as this process's user.

        `write_line` receives its output, and `on_end` is called after it exits.

        Raises:
            SandboxFailed: The process cannot be started.
        """
        self._write_line = write_line
        self._on_end = on_end
        self._boundaries: dict[str, threading.Event] = {"init": threading.Event()}
        self._output_ended = threading.Event()
        self._received = b""
        request_read, self._request_write = os.pipe()
        self._response_read, response_write = os.pipe()
        life_read, self._life_write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-s", str(RUNTIME), str(request_read), str(response_write), str(life_read)],
                env=dict(environment),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(request_read, response_write, life_read),
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        except (OSError, ValueError) as error:
            self._close_descriptors()
            raise SandboxFailed(f"cannot start {sys.executable} for a function: {error}") from error
        finally:
            for descriptor in (request_read, response_write, life_read):
                os.close(descriptor)
        os.set_blocking(self._request_write, False)
        os.set_blocking(self._response_read, False)
        self._kill_lock = threading.Lock()
        self._exchange = threading.RLock()
        self._ended = False
        self._descriptors_open = True
        threading.Thread(target=self._read_output, name=f"function-output-{self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process ID, which is also the ID of its process group."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Return True while the process is running."""
        return not self._ended and self._process.poll() is None

    def initialize(self, limit_seconds: float = INIT_LIMIT_SECONDS) -> Outcome | None:
        """Wait until the handler is loaded. Return None on success, or the outcome on failure."""
        with self._exchange:
            if not self._descriptors_open:
                return self._exited("init")
            answer = self._receive(time.monotonic() + limit_seconds, "init")
        if isinstance(answer, Outcome):
            return answer
        if answer["type"] == "ready":
            return None
        return Outcome("failed", answer["payload"])

    def invoke(self, request: Mapping[str, Any], timeout_seconds: float) -> Outcome:
        """Run an invocation and return its outcome. A timeout kills the process."""
        request_id = str(request["request_id"])
        self._boundaries[request_id] = threading.Event()
        deadline = time.monotonic() + timeout_seconds
        data = (json.dumps({**request, "timeout_seconds": timeout_seconds}) + "\n").encode()
        with self._exchange:
            failure = self._send(data, deadline, request_id) if self._descriptors_open else self._exited(request_id)
            answer = self._receive(deadline, request_id) if failure is None else failure
        del self._boundaries[request_id]
        if isinstance(answer, Outcome):
            return answer
        return Outcome("failed" if answer["failed"] else "succeeded", answer["payload"], int(answer["peak_memory_mib"]))

    def close(self) -> None:
        """Kill the process group and reap the process. An invocation in another thread ends as "exited"."""
        self._kill()
        with self._exchange:
            if self._descriptors_open:
                self._descriptors_open = False
                self._close_descriptors()

    def _close_descriptors(self) -> None:
        for descriptor in (self._request_write, self._response_read, self._life_write):
            os.close(descriptor)

    def _kill(self) -> None:
        with self._kill_lock:
            if self._ended:
                return
            self._ended = True
            # Kill the process group, since the function may have started programs that outlive it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self._output_ended.wait(LOG_SETTLE_SECONDS)
        self._on_end()

    def _send(self, data: bytes, deadline: float, request_id: str) -> Outcome | None:
        view = memoryview(data)
        while view:
            if not _await(self._request_write, select.POLLOUT, deadline):
                return self._timed_out(request_id)
            try:
                view = view[os.write(self._request_write, view) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return self._exited(request_id)
        return None

    def _receive(self, deadline: float, tag: str) -> dict[str, Any] | Outcome:
        while b"\n" not in self._received:
            if not _await(self._response_read, select.POLLIN, deadline):
                return self._timed_out(tag)
            chunk = os.read(self._response_read, 1 << 20)
            if not chunk:
                return self._exited(tag)
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        self._boundaries[tag].wait(LOG_SETTLE_SECONDS)
        message: dict[str, Any] = json.loads(line)
        return message

    def _timed_out(self, tag: str) -> Outcome:
        self.close()
        return Outcome("timed_out", json.dumps({"tag": tag}))

    def _exited(self, tag: str) -> Outcome:
        try:
            status = self._process.wait(LOG_SETTLE_SECONDS)
        except subprocess.TimeoutExpired:  # the process closed the pipe but is still running
            status = -signal.SIGKILL
        self.close()
        how = f"signal: {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        prefix = "" if tag == "init" else f"RequestId: {tag} "
        message = f"{prefix}Error: Runtime exited with error: {how}"
        return Outcome("exited", json.dumps({"errorMessage": message, "errorType": "Runtime.ExitError"}))

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for raw in stream:
                text = raw.decode(errors="replace").rstrip("\r\n")
                line, mark, tag = text.partition(LOG_BOUNDARY)
                if line or not mark:
                    self._write_line(line)
                boundary = self._boundaries.get(tag) if mark else None
                if boundary is not None:
                    boundary.set()
        self._output_ended.set()


def _await(descriptor: int, event: int, deadline: float) -> bool:
    """Wait until a descriptor is ready or broken. Return False at the deadline (monotonic seconds)."""
    poll = select.poll()  # unlike select(2), poll(2) supports descriptors above 1023
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
