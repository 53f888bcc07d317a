"""An event log that keeps the events in memory."""

from __future__ import annotations

from typing import Any

from bootstrap.events.schema import Event


class RecordedEvents:
    """Collects emitted events as dictionaries, whose only common key is the name."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, event: Event) -> None:
        self.events.append({"event": event.event_name(), **event.to_json()})
