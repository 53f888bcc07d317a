"""Reads and formats the nodes' events from a deployment's log group."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

OVERLAP_SECONDS = 30.0
"""Each poll also reads events this much older than the newest one, since nodes deliver their events independently."""
POLL_SECONDS = 0.5
"""Time between polls. FilterLogEvents has a quota of requests per second, which all followers in a region share.
Source (2026-11): https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/cloudwatch_limits_cwl.html"""
_COMMON = ("schema_version", "event", "unix_seconds", "instance_id")
_FRAME = ("record", "schema_version", "unix_seconds")

Event = Mapping[str, Any]


class EventReader:
    """Yields each event in a log group once, ordered by time within each poll.

    Args:
        logs: A boto3 client for CloudWatch Logs.
        group: Name of the log group.
        since_unix_seconds: Time of the oldest event to read.
        node: Instance id, or a prefix of it; an empty string: all nodes.
        pattern: CloudWatch Logs filter pattern; an empty string: all events.
    """

    def __init__(self, logs: Any, group: str, since_unix_seconds: float, node: str = "", *, pattern: str = "") -> None:
        self._logs = logs
        self._group = group
        self._newest_ms = self._since_ms = int(since_unix_seconds * 1000)
        self._node = node
        self._pattern = pattern
        self._seen: dict[str, int] = {}

    def poll(self) -> Iterator[Event]:
        """Yield the events that arrived since the last poll.

        Raises:
            botocore.exceptions.ClientError: AWS rejected the call.
        """
        start = max(self._since_ms, self._newest_ms - int(OVERLAP_SECONDS * 1000))
        arguments: dict[str, Any] = {"logGroupName": self._group, "startTime": start}
        if self._node:
            arguments["logStreamNamePrefix"] = self._node
        if self._pattern:
            arguments["filterPattern"] = self._pattern
        fresh: list[tuple[int, Event]] = []
        for page in self._logs.get_paginator("filter_log_events").paginate(**arguments):
            for entry in page["events"]:
                if entry["eventId"] not in self._seen and entry["logStreamName"].startswith(self._node):
                    self._seen[entry["eventId"]] = entry["timestamp"]
                    fresh.append((entry["timestamp"], _event(entry)))
        self._newest_ms = max([self._newest_ms, *(timestamp for timestamp, _ in fresh)])
        self._seen = {
            key: timestamp
            for key, timestamp in self._seen.items()
            if timestamp >= self._newest_ms - int(OVERLAP_SECONDS * 1000)
        }
        for _, event in sorted(fresh, key=lambda each: each[0]):
            yield event

    def follow(self, sleep: Callable[[float], None] = time.sleep) -> Iterator[Event]:
        """Yield events until the caller stops."""
        while True:
            yield from self.poll()
            sleep(POLL_SECONDS)


def _event(entry: Mapping[str, Any]) -> Event:
    """Return a log entry as an event. Text that is not an event becomes an event named `text`."""
    try:
        value = json.loads(entry["message"])
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("event"), str):
        value = {"event": "text", "message": str(entry["message"])}
    value.setdefault("unix_seconds", entry["timestamp"] / 1000)
    value.setdefault("instance_id", entry["logStreamName"])
    return value


def line_of(event: Event) -> str:
    """Return an event as one line: time, node, name and values. Control characters are replaced."""
    moment = event["unix_seconds"] if isinstance(event["unix_seconds"], (int, float)) else 0.0
    name, values = event["event"], {key: value for key, value in event.items() if key not in _COMMON}
    if name == "trainer" and isinstance(values.get("record"), dict):
        record = values["record"]
        name, values = str(record.get("record")), {key: item for key, item in record.items() if key not in _FRAME}
    if name == "trainer_output":
        values["text"] = f"{str(values.get('text')).count(chr(10))} lines"
    parts = [f"{key}={_text(value)}" for key, value in values.items() if value not in (None, "", [], {})]
    clock = time.strftime("%H:%M:%S", time.gmtime(min(max(moment, 0.0), 253402300799.0)))
    return _printable(f"{clock} {event['instance_id']:<19} {name:<18} {' '.join(parts)}".rstrip())


def output_lines(event: Event) -> list[str]:
    """Return the lines of a `trainer_output` event, each with the node's rank, and a line for dropped output."""
    label = f"[node {event.get('rank')}]"
    dropped = event.get("dropped_bytes")
    lines = [f"{label} ({dropped:,} bytes omitted)"] if isinstance(dropped, int) and dropped > 0 else []
    # A progress bar rewrites its line with carriage returns: show its latest state.
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in str(event.get("text", "")).split("\n")]
    return [*lines, *(f"{label} {_printable(line)}" for line in (shown if shown[-1] else shown[:-1]))]


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)
