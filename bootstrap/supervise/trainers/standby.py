"""The warm standby: a guarded process that has imported torch and waits to become the next launcher.

It saves most of the time between a generation record and the first step. If there is no standby with the same code, the
trainers start cold.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bootstrap.supervise.trainers import guardian

logger = logging.getLogger(__name__)

STANDBY_LOG = "standby.log"
"""The standby's log, which is moved to the run directory when the standby becomes the launcher."""
DESCRIPTOR_VARIABLE = "TRAINSTACK_STANDBY_FD"
# A new standby imports while the current generation trains, but not while that generation is still starting or
# importing on the same cores.
PAUSE_SECONDS = 10.0
# A node that joins a training gang waits at most this long for its standby. The gang keeps training.
WARMING_LIMIT_SECONDS = 120.0
_READY = b"r"


@dataclass(frozen=True)
class Kind:
    """A standby's identity. A standby can start only runs with this code and number of processes."""

    code_sha256: str
    processes_per_node: int


class Standby:
    """Manages at most one waiting process. This class is not thread-safe."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._started: socket.socket | None = None
        self._received = b""
        self._is_reported = False
        self._is_started_importing = False
        self._imported_at = 0.0
        self._created_at = 0.0
        self._kind: Kind | None = None
        self._failed: Kind | None = None

    def needs(self, kind: Kind) -> bool:
        """Return True if a standby of this kind must still be created. A standby that has exited is not replaced."""
        if self._process is not None and self._process.poll() is not None:
            logger.warning(
                "the standby exited (exit code %s; log: %s); the next start will be cold",
                self._process.returncode,
                self._log,
            )
            self._failed = self._kind
            self._end_waiting()
        return kind not in (self._kind, self._failed)

    def create(self, kind: Kind, interpreter: str, environment: Mapping[str, str], directory: Path) -> None:
        """Stop the existing standby, if any, and create one that imports and then waits."""
        self._end_waiting()
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__, interpreter, "-m", "training", "standby"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment, DESCRIPTOR_VARIABLE: str(theirs.fileno())},
                cwd=directory,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._kind, self._received, self._created_at, self._is_reported = kind, b"", time.monotonic(), False

    def is_warming(self) -> bool:
        """Return True if a standby is still importing and has not timed out."""
        return self._socket is not None and not self._is_late() and _READY not in self._hear()

    def is_silent(self) -> bool:
        """Return True if a standby is about to be created or has not sent its first byte yet."""
        if self._socket is None:
            return self._failed is None
        return not self._is_late() and not self._hear()

    def take_import_seconds(self) -> float | None:
        """Return the standby's import time in seconds, once, when it is ready. Otherwise, return None."""
        if self._socket is None or self._is_reported or _READY not in self._hear():
            return None
        self._is_reported = True
        return time.monotonic() - self._created_at

    def imported_at(self) -> float:
        """Return when the last standby's imports ended (monotonic seconds), or the current time before that."""
        if self._started is not None and self._is_started_importing:
            self._imported_at = time.monotonic()
            try:
                self._started.recv(16)  # its ready byte, or the end of the stream
                self._is_started_importing = False
            except BlockingIOError:
                self._is_started_importing = not self._is_late()
            except ConnectionResetError:
                self._is_started_importing = False
        return self._imported_at

    def start(
        self, kind: Kind, arguments: Sequence[str], environment: Mapping[str, str], directory: Path, log: Path
    ) -> subprocess.Popen[bytes] | None:
        """Make the standby the launcher with these arguments. Return its guardian, or None if no standby is usable.

        A standby that is still importing is usable. A standby that has not sent anything may run older code, without
        this feature.
        """
        process, ours = self._process, self._socket
        if process is None or ours is None or self._kind != kind or not self._hear() or process.poll() is not None:
            return None
        start = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "directory": str(directory),
            "log": str(log),
        }
        self._process, self._socket, self._kind = None, None, None
        with contextlib.suppress(FileNotFoundError):  # its output from before it wrote to the trainers' log
            self._log.replace(directory / STANDBY_LOG)
        if self._started is not None:
            self._started.close()
        # Keep the socket open, because a standby that is still importing will write its ready byte.
        self._started, self._is_started_importing = ours, _READY not in self._received
        try:
            ours.setblocking(True)
            ours.sendall(json.dumps(start).encode())
            ours.shutdown(socket.SHUT_WR)
            ours.setblocking(False)
        except OSError as error:  # it has just exited
            logger.warning("the standby has exited (%s): starting cold", error)
            _end(process)
            return None
        return process

    def end(self) -> None:
        """Stop the waiting standby, and close the started standby's socket."""
        self._end_waiting()
        if self._started is not None:
            self._started.close()
        self._started = None

    def _end_waiting(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            _end(self._process)
        self._process, self._socket, self._kind = None, None, None

    def _is_late(self) -> bool:
        return time.monotonic() - self._created_at > WARMING_LIMIT_SECONDS

    def _hear(self) -> bytes:
        if self._socket is not None:
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                self._received += self._socket.recv(16)
        return self._received


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()  # makes the guardian kill its descendants
    try:
        process.wait(guardian.KILL_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
