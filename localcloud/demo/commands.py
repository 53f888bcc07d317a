"""Runs the demo's child commands, logs their output to files, and shows the end of a failed command's output."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TAIL_LINES = 25


class CommandFailed(Exception):
    """A child command exited with a non-zero code."""

    def __init__(self, title: str, arguments: Sequence[str], code: int, tail: str, log: Path) -> None:
        super().__init__(
            f"{title} failed with exit code {code}\n  command: {' '.join(arguments)}\n  log: {log}\n"
            + "\n".join(f"  | {line}" for line in tail.splitlines())
        )


class Command:
    """A running child command.

    The child stays in this process's group so that it receives Ctrl-C. Its environment contains the cloud's mark, so
    the next `down` can find it if this process is killed.
    """

    def __init__(
        self,
        title: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self.title = title
        self.arguments = list(arguments)
        self.log = log
        self._on_line = on_line
        self._lines: list[str] = []
        log.parent.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            self.arguments,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name=f"read {title}", daemon=True)
        self._reader.start()
        self._started = time.monotonic()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self.log.open("w", encoding="utf-8") as file:
            for line in self._process.stdout:
                file.write(line)
                file.flush()
                self._lines.append(line.rstrip("\n"))
                if self._on_line is not None:
                    self._on_line(line.rstrip("\n"))

    def wait(self, *, timeout_seconds: float) -> str:
        """Wait for the command and return its output.

        Raises:
            CommandFailed: The command failed, or was killed after `timeout_seconds` (code 124).
        """
        remaining = timeout_seconds - (time.monotonic() - self._started)
        try:
            code = self._process.wait(timeout=max(remaining, 0.0))
        except subprocess.TimeoutExpired:
            self.kill()
            code = 124
        self._reader.join(timeout=5)
        if code != 0:
            raise CommandFailed(self.title, self.arguments, code, "\n".join(self._lines[-TAIL_LINES:]), self.log)
        return "\n".join(self._lines)

    def raise_if_failed(self) -> None:
        """Raise CommandFailed if the command has failed; do nothing if it is running or has succeeded."""
        if self._process.poll() not in (None, 0):
            self.wait(timeout_seconds=1.0)

    def kill(self) -> None:
        """Kill the command if it is running."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
