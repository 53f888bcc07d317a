"""The node's events: one JSON object a line, to a file and to whoever else listens.

The events and their keys are listed in docs/architecture.md, section 4.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bootstrap.system import System

logger = logging.getLogger(__name__)

Listener = Callable[[Mapping[str, Any]], None]
"""Is given each event; must not block or raise."""


class EventLog:
    """Writes events to a file in the order they happen, from any thread."""

    def __init__(self, system: System, path: Path) -> None:
        self._system = system
        self._path = path
        self._instance_id = "unknown"
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    def set_instance(self, instance_id: str) -> None:
        """Name the machine in every event from now on."""
        self._instance_id = instance_id

    def add_listener(self, listener: Listener) -> None:
        """Hand every event from now on to `listener` too."""
        self._listeners.append(listener)

    def emit(self, event: str, **fields: Any) -> None:
        """Record an event."""
        record = {
            "event": event,
            "unix_seconds": round(self._system.unix_seconds(), 3),
            "instance_id": self._instance_id,
            **fields,
        }
        line = json.dumps(record) + "\n"
        with self._lock:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as stream:
                    stream.write(line)
            except OSError as error:  # a full disk must not take the report of the full disk with it
                logger.error("%s: event %s is not recorded: %s", self._path, event, error)
        if event != "trainer":
            logger.info("%s", line.rstrip())
        for listener in self._listeners:
            listener(record)
