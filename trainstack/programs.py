"""Runs the other programs of this project, and prints a line when one prints nothing for a while."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

SILENT_SECONDS = 4.0
"""Longest time without a line of output."""


def python(module: str, *arguments: str) -> list[str]:
    """Return the command line of a program of this project."""
    return [sys.executable, "-m", module, *arguments]


def run(command: Sequence[str], what: str, *, environment: Mapping[str, str] | None = None) -> int:
    """Run a program without standard input, copy its output to standard error, and return its exit code.

    Args:
        command: The program and its arguments.
        what: Name of the action, to print while the program prints nothing.
        environment: The program's environment; None for this process's.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), name=f"output of {what}", daemon=True)
    reader.start()
    try:
        while True:
            try:
                line = lines.get(timeout=SILENT_SECONDS)
            except queue.Empty:
                line = f"{what} ... ({time.monotonic() - started:.0f} s)\n"
            if line is None:
                return process.wait()
            sys.stderr.write(line)
            sys.stderr.flush()
    except BaseException:  # also Ctrl-C: the program must not continue without this one
        process.terminate()
        process.wait()
        raise


def _read(output: IO[Any] | None, lines: queue.Queue[str | None]) -> None:
    assert output is not None
    for line in output:
        lines.put(line)
    lines.put(None)
