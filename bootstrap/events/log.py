"""The node's event log. It writes each event to a file as a line of JSON, and passes it to listeners."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bootstrap.events.schema import SCHEMA_VERSION, Event, Trainer, TrainerOutput
from bootstrap.system import System

logger = logging.getLogger(__name__)

Listener = Callable[[Mapping[str, Any]], None]
"""Receives each event. It must not block or raise exceptions."""


class EventLog:
    """Appends events to a file in order. This class is thread-safe."""

    def __init__(self, system: System, path: Path) -> None:
        self._system = system
        self._path = path
        self._instance_id = "unknown"
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    def set_instance(self, instance_id: str) -> None:
        """Set the instance id for later events."""
        self._instance_id = instance_id

    def add_listener(self, listener: Listener) -> None:
        """Also pass later events to `listener`."""
        self._listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Record an event."""
        record = {
            "schema_version": SCHEMA_VERSION,
            "event": event.event_name(),
            "unix_seconds": round(self._system.unix_seconds(), 3),
            "instance_id": self._instance_id,
            **event.to_json(),
        }
        line = json.dumps(record) + "\n"
        with self._lock:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as stream:
                    stream.write(line)
            except OSError as error:  # a full disk must not prevent the event that reports it
                logger.error("%s: cannot record event %s: %s", self._path, event.event_name(), error)
        if not isinstance(event, (Trainer, TrainerOutput)):
            logger.info("%s", line.rstrip())
        for listener in self._listeners:
            listener(record)
