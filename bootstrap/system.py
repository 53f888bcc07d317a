"""The one seam between the node program and the machine: programs, files, HTTP, clock.

Everything that touches the machine goes through `System`, so that tests can put another one in its place. AWS calls are
not here: see `aws`.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from bootstrap.errors import CommandError

OUTPUT_TAIL_BYTES = 4096
MEANWHILE_SECONDS = 1.0


@dataclass(frozen=True)
class HttpAnswer:
    """Status and body of an HTTP answer."""

    status: int
    body: str


class System:
    """The machine that this process runs on."""

    def __init__(self) -> None:
        self._children: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        # No proxy: link-local and loop-back addresses are never reached through one.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables of this process."""
        return os.environ

    def run(
        self,
        command: Sequence[str],
        *,
        timeout_seconds: float,
        environment: Mapping[str, str] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> str:
        """Run a program to its end and return what it wrote to standard output.

        `environment` is added to this process's own. `meanwhile` is called about once a second; when it raises, the
        program is killed, and what it raised goes on.

        Raises:
            CommandError: It cannot be started, ends with a code that is not 0, or takes longer than `timeout_seconds`
                (it is then killed, with everything in its session).
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
                exit_code = _wait(process, timeout_seconds, meanwhile)
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
            f"took longer than {timeout_seconds:g} seconds" if exit_code is None else f"ended with code {exit_code}"
        )
        raise CommandError(command, exit_code, tail, reason)

    def start(self, command: Sequence[str], *, timeout_seconds: float) -> str:
        """Start a program that goes on by itself; return its first line on standard output, when it has written it.

        The line is empty when the program ends, or `timeout_seconds` pass, before that; it is then killed. The program
        outlives this process, and writes its standard error where this process does.

        Raises:
            CommandError: It cannot be started.
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

    def converse(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program that is spoken to line by line, and that ends when its input does: also when this one dies.

        Raises:
            CommandError: It cannot be started.
        """
        try:
            return subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise CommandError(command, None, "", f"cannot be started ({error.strerror})") from error

    def kill_children(self) -> None:
        """Kill every program that `run` is still waiting for, or that `start` left running."""
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
        """Return the path of a program: `name` on PATH, or an absolute path that can be executed."""
        return shutil.which(name)

    def read(self, path: Path) -> str | None:
        """Return the text of a file, or None when there is no such file."""
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write_atomic(self, path: Path, text: str) -> None:
        """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
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
        """Return the sorted names in a directory; empty when there is none."""
        try:
            return sorted(entry.name for entry in path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read_edges(self, path: Path, count: int) -> bytes:
        """Return the first and the last `count` bytes of a block device that nothing else uses.

        Raises:
            OSError: It cannot be read; EBUSY when it is mounted, or part of an array.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_EXCL)  # EXCL: the kernel refuses a disk that something holds
        try:
            size = os.lseek(descriptor, 0, os.SEEK_END)
            return os.pread(descriptor, count, 0) + os.pread(descriptor, count, max(0, size - count))
        finally:
            os.close(descriptor)

    def free_bytes(self, path: Path) -> int:
        """Return the bytes that a user may still write to the file system of `path`, which must exist."""
        return shutil.disk_usage(path).free

    def http(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, timeout_seconds: float
    ) -> HttpAnswer:
        """Make an HTTP request without a proxy; a status of 400 and more is an answer too.

        Raises:
            OSError: Nothing answers within `timeout_seconds`.
        """
        request = urllib.request.Request(url, method=method, headers=dict(headers or {}))  # noqa: S310 metadata is http
        try:
            with self._opener.open(request, timeout=timeout_seconds) as answer:
                return HttpAnswer(answer.status, answer.read().decode(errors="replace"))
        except urllib.error.HTTPError as error:
            with error:
                return HttpAnswer(error.code, error.read().decode(errors="replace"))

    def unix_seconds(self) -> float:
        """Return the wall clock."""
        return time.time()

    def monotonic_seconds(self) -> float:
        """Return a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        time.sleep(seconds)

    def replace_process(self, command: Sequence[str]) -> NoReturn:
        """Become another program, in the same place of the process tree."""
        os.execv(command[0], list(command))  # noqa: S606 no shell is wanted

    def shut_down(self) -> None:
        """Give the machine back: the launch template terminates an instance that shuts itself down.

        Raises:
            CommandError: The machine refuses.
        """
        try:
            self.run(["shutdown", "-h", "now"], timeout_seconds=30)
        except CommandError as error:
            # The fleet was faster: EC2 presses the power button of a machine that it terminates.
            if "already a shutdown" not in error.output_tail:
                raise


def _wait(process: subprocess.Popen[bytes], timeout_seconds: float, meanwhile: Callable[[], None] | None) -> int | None:
    """Return the exit code, or None when `timeout_seconds` have passed."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        remaining = max(0.0, deadline - time.monotonic())
        try:
            return process.wait(remaining if meanwhile is None else min(MEANWHILE_SECONDS, remaining))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                return None
        if meanwhile is not None:
            meanwhile()
