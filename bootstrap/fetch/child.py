"""A program that answers JSON lines with JSON lines."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from bootstrap.system import System

Answers = queue.SimpleQueue[tuple["Child", Optional[dict[str, Any]]]]
"""Who answered, and what; None: it has ended."""


class Child:
    """One such program; its answers go to a queue."""

    def __init__(self, system: System, command: Sequence[str], answers: Answers) -> None:
        """Start it.

        Raises:
            CommandError: It cannot be started.
        """
        self.command = tuple(command)
        self.asked = 0
        """How many answers are awaited, where each line gets one."""
        self._process = system.converse(command)
        threading.Thread(target=self._listen, args=(answers,), name="listen", daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a line; when the program has ended, the queue says so."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # `_listen` finds the end of its output

    def end(self) -> None:
        """End it: it does nothing any more when this returns."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            return

    def _listen(self, answers: Answers) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                answers.put((self, json.loads(line)))
        answers.put((self, None))
