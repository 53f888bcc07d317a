"""Reading the nodes' events during a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localcloud.demo.watch import EventLog, RunFailed


class Logs:
    """A logs client with one page of events."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self._entries = [
            {"eventId": str(number), "logStreamName": "i-1", "message": json.dumps(event)}
            for number, event in enumerate(events)
        ]

    def filter_log_events(self, **arguments: Any) -> dict[str, Any]:
        return {"events": self._entries}


def test_events_are_sorted_and_returned_once() -> None:
    late, early = ({"event": "boot_started", "schema_version": 2, "unix_seconds": time} for time in (2.0, 1.0))
    log = EventLog(Logs(late, early), "group")
    assert [event["unix_seconds"] for event in log.poll()] == [1.0, 2.0]
    assert list(log.poll()) == []


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"event": "boot_started"}, "i-1: event boot_started has schema_version 1, expected 2; run"),
        ({"event": "trainer", "schema_version": 2, "record": {"record": "step"}}, "record step has schema_version 1"),
        ({"event": "boot_started", "schema_version": 3}, "event boot_started has schema_version 3, expected 2"),
    ],
)
def test_other_schema_versions_are_refused(event: dict[str, Any], text: str) -> None:
    with pytest.raises(RunFailed, match=text):
        list(EventLog(Logs({"unix_seconds": 1.0, **event}), "group").poll())
