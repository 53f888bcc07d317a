"""Interface between the node program and the machine: programs, files, HTTP and the clock.

All access to the machine uses `System`, so that tests can replace it. AWS calls are in `aws`.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, NoReturn

from bootstrap.errors import CommandError

OUTPUT_TAIL_BYTES = 4096
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TICK_SECONDS = 1.0
MAX_ANSWER_BYTES = 64 * 1024
"""Maximum size of an HTTP response. User data, the largest metadata item, has at most 16 KiB. Source (2026-11):
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html"""


@dataclass(frozen=True)
class HttpAnswer:
    """Status and body of an HTTP response."""

    status: int
    body: str


class _BeforeDeadline(io.RawIOBase):
    """Reads bytes from a socket until a deadline. A socket's timeout limits only each read, not the total."""

    def __init__(self, connected: socket.socket, deadline: float, clock: Callable[[], float]) -> None:
        self._socket, self._deadline, self._clock = connected, deadline, clock
        self._bytes = connected.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        remaining_seconds = self._deadline - self._clock()
        if remaining_seconds <= 0:
            raise TimeoutError("the response is still incomplete after the timeout")
        self._socket.settimeout(remaining_seconds)
        return self._bytes.readinto(buffer)

    def close(self) -> None:
        self._bytes.close()
        super().close()


class _Response(HTTPResponse):
    """A response whose status line, headers and body must all arrive before a deadline."""

    def __init__(self, connected: socket.socket, method: str, deadline: float, clock: Callable[[], float]) -> None:
        super().__init__(connected, method=method)
        self.fp.close()
        self.fp = io.BufferedReader(_BeforeDeadline(connected, deadline, clock))


class System:
    """The machine that this process runs on."""

    def __init__(self) -> None:
        self._children: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def environment(self) -> Mapping[str, str]:
        """Return this process's environment variables."""
        return os.environ

    def run(
        self,
        command: Sequence[str],
        *,
        timeout_seconds: float,
        environment: Mapping[str, str] | None = None,
        on_tick: Callable[[], None] | None = None,
    ) -> str:
        """Run a program and return its standard output.

        Args:
            command: Command line.
            timeout_seconds: Timeout.
            environment: Variables to add to this process's environment.
            on_tick: Called about once per second. If it raises an exception, the program is killed and the exception
                propagates.

        Raises:
            CommandError: The program cannot be started, exits with a nonzero code, or takes longer than
                `timeout_seconds`, in which case its process group is killed.
        """
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    env={**self.environment(), **(environment or {})},
                    start_new_session=True,
                )
            except OSError as error:
                raise CommandError(command, None, "", f"cannot be started ({error})") from error
            with self._lock:
                self._children.add(process)
            try:
                exit_code = _wait(process, timeout_seconds, on_tick)
                if exit_code is None:
                    self._kill(process)
            except BaseException:
                self._kill(process)
                raise
            finally:
                with self._lock:
                    self._children.discard(process)
            output.seek(0)
            written = output.read().decode(errors="replace")
            if exit_code == 0:
                return written
            errors.seek(0)
            tail = (written + errors.read().decode(errors="replace"))[-OUTPUT_TAIL_BYTES:]
        reason = (
            f"took longer than {timeout_seconds:g} seconds" if exit_code is None else f"exited with code {exit_code}"
        )
        raise CommandError(command, exit_code, tail, reason)

    def start(self, command: Sequence[str], *, timeout_seconds: float) -> str:
        """Start a program in the background, wait for its first line on standard output, and return the line.

        The line is empty if the program exits first. It is also empty after `timeout_seconds`, when the program is
        killed. The program outlives this process and inherits its standard error.

        Raises:
            CommandError: The program cannot be started.
        """
        try:
            process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise CommandError(command, None, "", f"cannot be started ({error.strerror})") from error
        with self._lock:
            self._children.add(process)
        assert process.stdout is not None
        with process.stdout as output:
            ready, _, _ = select.select([output], [], [], timeout_seconds)
            line = output.readline().decode(errors="replace").strip() if ready else ""
        if not line:
            self._kill(process)
        return line

    def start_with_pipes(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program with pipes to its standard input and output.

        The program must exit when its input ends, which also happens if this process dies.

        Raises:
            CommandError: The program cannot be started.
        """
        try:
            return subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise CommandError(command, None, "", f"cannot be started ({error.strerror})") from error

    def kill_children(self) -> None:
        """Kill every program started by `run` or `start` that is still running."""
        with self._lock:
            children = list(self._children)
        for process in children:
            self._kill(process)

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, 9)
        process.wait()

    def find_program(self, name: str) -> str | None:
        """Return the path of a program on PATH or at an absolute path, or None if there is no such executable."""
        return shutil.which(name)

    def read(self, path: Path) -> str | None:
        """Return a file's text, or None if the file does not exist."""
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write_atomic(self, path: Path, text: str) -> None:
        """Write a file atomically and durably: readers see either the old or the new content, even after a crash."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink()
            raise

    def list_directory(self, path: Path) -> list[str]:
        """Return the sorted names in a directory, or an empty list if it does not exist."""
        try:
            return sorted(entry.name for entry in path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read_edges(self, path: Path, count: int) -> bytes:
        """Return the first and last `count` bytes of an unused block device.

        Raises:
            OSError: The device cannot be read. The error is EBUSY if it is mounted or part of an array.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_EXCL)  # O_EXCL: the kernel refuses to open a disk that is in use
        try:
            size = os.lseek(descriptor, 0, os.SEEK_END)
            return os.pread(descriptor, count, 0) + os.pread(descriptor, count, max(0, size - count))
        finally:
            os.close(descriptor)

    def free_bytes(self, path: Path) -> int:
        """Return the free space in bytes on the file system that contains `path`, which must exist."""
        return shutil.disk_usage(path).free

    def http(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, timeout_seconds: float
    ) -> HttpAnswer:
        """Make an HTTP request without a proxy, because link-local and loopback addresses must be reached directly.

        Error statuses and redirects are returned instead of being raised or followed.

        Raises:
            OSError: The server did not send a valid response of at most MAX_ANSWER_BYTES within `timeout_seconds`.
        """
        address = urllib.parse.urlsplit(url)
        deadline = self.monotonic_seconds() + timeout_seconds
        connection = HTTPConnection(address.hostname or "", address.port or 80, timeout=timeout_seconds)
        try:
            connection.request(method, address.path, headers=dict(headers or {}))
            assert connection.sock is not None
            response = _Response(connection.sock, method, deadline, self.monotonic_seconds)
            response.begin()
            body = response.read(MAX_ANSWER_BYTES + 1)
        except HTTPException as error:
            # A truncated or malformed response (IncompleteRead, BadStatusLine) is not an OSError.
            raise OSError(f"{url}: invalid response ({type(error).__name__}: {error})") from error
        finally:
            connection.close()
        if len(body) > MAX_ANSWER_BYTES:
            raise OSError(f"{url}: the response has more than {MAX_ANSWER_BYTES} bytes")
        expected = response.headers.get("Content-Length", "")
        if expected.isdecimal() and len(body) < int(expected):
            raise OSError(f"{url}: the response has {len(body)} of {expected} bytes")
        return HttpAnswer(response.status, body.decode(errors="replace"))

    def boot_id(self) -> str:
        """Return the kernel's boot id, or an empty string if there is none."""
        return (self.read(BOOT_ID) or "").strip()

    def unix_seconds(self) -> float:
        """Return the wall-clock time."""
        return time.time()

    def monotonic_seconds(self) -> float:
        """Return the monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def replace_process(self, command: Sequence[str]) -> NoReturn:
        """Replace this process with another program."""
        os.execv(command[0], list(command))  # noqa: S606 no shell needed

    def shut_down(self) -> None:
        """Shut down, which terminates the instance (see its launch template).

        Raises:
            CommandError: The shutdown was refused.
        """
        try:
            self.run(["shutdown", "-h", "now"], timeout_seconds=30)
        except CommandError as error:
            # If EC2 is terminating the instance, a shutdown is already in progress.
            if "already a shutdown" not in error.output_tail:
                raise


def _wait(process: subprocess.Popen[bytes], timeout_seconds: float, on_tick: Callable[[], None] | None) -> int | None:
    """Return the exit code, or None if the program is still running after `timeout_seconds`."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        remaining = max(0.0, deadline - time.monotonic())
        try:
            return process.wait(remaining if on_tick is None else min(TICK_SECONDS, remaining))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                return None
        if on_tick is not None:
            on_tick()
