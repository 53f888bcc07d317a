"""The warm standby: a guardian whose program has torch imported already, and waits to become the next torchrun.

What it saves is most of the time between a generation's record and its first step. It is only ever a short cut: without
one, or with one that is of other code, the trainers are started as if there were none.
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

from bootstrap.supervise import guardian

logger = logging.getLogger(__name__)

STANDBY_LOG = "standby.log"
"""What it says until it writes to the trainers' log; in the generation's directory, once it was started."""
DESCRIPTOR_VARIABLE = "TRAINSTACK_STANDBY_FD"
# A new one imports while the generation that took the last one trains: not while that one starts, or still imports, on
# the same cores.
PAUSE_SECONDS = 10.0
# A node that joins a gang that trains is not ready before its standby is: the others train on meanwhile. Not for ever.
WARMING_LIMIT_SECONDS = 120.0
_READY = b"r"


@dataclass(frozen=True)
class Kind:
    """What a standby is good for; one of another kind is replaced."""

    code_sha256: str
    processes_per_node: int


class Standby:
    """At most one waiting process; one thread uses it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._used: socket.socket | None = None
        self._said = b""
        self._is_told = False
        self._used_imports = False
        self._imported_at = 0.0
        self._made_at = 0.0
        self._kind: Kind | None = None
        self._failed: Kind | None = None

    def lacks(self, kind: Kind) -> bool:
        """Return whether one of this kind is still to be made; one that ended by itself is not tried again."""
        if self._process is not None and self._process.poll() is not None:
            logger.warning("the standby ended (exit code %s), see %s: starts cold", self._process.returncode, self._log)
            self._failed = self._kind
            self._end_waiting()
        return kind not in (self._kind, self._failed)

    def make(self, kind: Kind, interpreter: str, environment: Mapping[str, str], directory: Path) -> None:
        """Start one that imports, and then waits, in place of any other that waits."""
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
        self._kind, self._said, self._made_at, self._is_told = kind, b"", time.monotonic(), False

    def is_warming(self) -> bool:
        """Return whether one is there that still imports, and may be waited for."""
        return self._socket is not None and not self._is_late() and _READY not in self._hear()

    def is_silent(self) -> bool:
        """Return whether one is to come that could not be started yet: it is made at the next look, or says nothing."""
        if self._socket is None:
            return self._failed is None
        return not self._is_late() and not self._hear()

    def news(self) -> float | None:
        """Return, once for each that is made, how many seconds it took to import everything; else None."""
        if self._socket is None or self._is_told or _READY not in self._hear():
            return None
        self._is_told = True
        return time.monotonic() - self._made_at

    def imported_at(self) -> float:
        """Return when the one that was started last had imported (monotonic seconds): now, as long as it does."""
        if self._used is not None and self._used_imports:
            self._imported_at = time.monotonic()
            try:
                self._used.recv(16)  # that it is ready, or its end
                self._used_imports = False
            except BlockingIOError:
                self._used_imports = not self._is_late()
            except ConnectionResetError:
                self._used_imports = False
        return self._imported_at

    def start(
        self, kind: Kind, arguments: Sequence[str], environment: Mapping[str, str], directory: Path, log: Path
    ) -> subprocess.Popen[bytes] | None:
        """Let it become torchrun with these arguments; returns its guardian, or None when there is none that could.

        One that still imports will do. One that has not said a word may be of code that knows of no standby.
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
        with contextlib.suppress(FileNotFoundError):  # what it says before it writes to the trainers' log
            self._log.replace(directory / STANDBY_LOG)
        if self._used is not None:
            self._used.close()
        # Open until then: one that still imports has a word to say, and would fail at a socket that is closed.
        self._used, self._used_imports = ours, _READY not in self._said
        try:
            ours.setblocking(True)
            ours.sendall(json.dumps(start).encode())
            ours.shutdown(socket.SHUT_WR)
            ours.setblocking(False)
        except OSError as error:  # it has just ended
            logger.warning("the standby is gone (%s): a cold start", error)
            _end(process)
            return None
        return process

    def end(self) -> None:
        """End what waits, and listen no longer to the one that was started."""
        self._end_waiting()
        if self._used is not None:
            self._used.close()
        self._used = None

    def _end_waiting(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            _end(self._process)
        self._process, self._socket, self._kind = None, None, None

    def _is_late(self) -> bool:
        return time.monotonic() - self._made_at > WARMING_LIMIT_SECONDS

    def _hear(self) -> bytes:
        if self._socket is not None:
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                self._said += self._socket.recv(16)
        return self._said


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()  # the guardian's sign to kill everything
    try:
        process.wait(guardian.KILL_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
