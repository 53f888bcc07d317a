"""A child process that exchanges lines of JSON with this process."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from bootstrap.system import System

Answers = queue.SimpleQueue[tuple["Child", dict[str, Any] | None]]
"""A child and its response. A response of None means that the child has exited."""


class Child:
    """A child process whose responses are put in a queue."""

    def __init__(self, system: System, command: Sequence[str], answers: Answers) -> None:
        """Start the process.

        Raises:
            CommandError: The process cannot be started.
        """
        self.command = tuple(command)
        self.pending = 0
        """Number of outstanding requests, which the caller maintains."""
        self._process = system.start_with_pipes(command)
        threading.Thread(target=self._listen, args=(answers,), name="listen", daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message. If the process has exited, the queue reports it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # `_listen` detects the end of the output

    def kill(self) -> None:
        """Kill the process and wait for it to exit."""
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
