"""Ships events to CloudWatch Logs, in one stream per instance, without blocking or terminating the process.

A thread sends about one batch per second from a bounded queue. Events that cannot be delivered stay in the events file.

A batch is ordered by time and has at most 10,000 events and 1,048,576 bytes, counting 26 extra bytes for each event. An
event can be at most 1 MB in size; the limit was 256 KB until 2025, and messages are kept shorter than that.
Source: https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutLogEvents.html (2026-11).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from bootstrap.aws import AWS_ERRORS

logger = logging.getLogger(__name__)

BATCH_EVENTS = 1000
BATCH_BYTES = 900_000
EVENT_OVERHEAD_BYTES = 26
MAX_EVENT_BYTES = 200_000
QUEUE_EVENTS = 10_000
INTERVAL_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0
CLOSING_PAUSE_SECONDS = 0.5
"""Pause between delivery attempts while closing."""


class LogShipper:
    """A listener of the event log that delivers to one CloudWatch Logs stream.

    When the queue is full, the oldest events are dropped, and their number is logged at the next delivery.
    """

    def __init__(self, client: Any, *, log_group: str, stream: str) -> None:
        self._client = client
        self._target = {"logGroupName": log_group, "logStreamName": stream}
        self._queue: deque[tuple[int, str]] = deque()
        self._dropped = 0
        self._stream_exists = False
        self._condition = threading.Condition()
        self._closing = False
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._work, name="log-shipper", daemon=True)
        self._thread.start()

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Queue an event."""
        with self._condition:
            if len(self._queue) >= QUEUE_EVENTS:
                self._queue.popleft()
                self._dropped += 1
            self._queue.append((int(event["unix_seconds"] * 1000), _message(event)))
            self._condition.notify()

    def close(self, limit_seconds: float) -> bool:
        """Deliver the queue within `limit_seconds`, with retries. Return True if the queue is empty."""
        with self._condition:
            self._closing, self._deadline = True, time.monotonic() + limit_seconds
            self._condition.notify()
        self._thread.join(limit_seconds)
        return not self._thread.is_alive() and not self._queue

    def _work(self) -> None:
        pause = 0.0
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                # Let the batch fill. This wait is also the pause after a failure, and closing ends it early.
                self._condition.wait_for(lambda: self._closing, max(INTERVAL_SECONDS, pause))
                batch = self._take()
            try:
                self._deliver(batch)
                pause = 0.0
            except AWS_ERRORS as error:
                logger.warning("%s: cannot deliver %d events yet: %s", self._target, len(batch), error)
                with self._condition:
                    self._queue.extendleft(reversed(batch))
                    while len(self._queue) > QUEUE_EVENTS:
                        self._queue.popleft()
                        self._dropped += 1
                pause = min(MAX_PAUSE_SECONDS, 2 * max(pause, INTERVAL_SECONDS))
                if self._closing:
                    if time.monotonic() + CLOSING_PAUSE_SECONDS > self._deadline:
                        return
                    time.sleep(CLOSING_PAUSE_SECONDS)

    def _take(self) -> list[tuple[int, str]]:
        batch: list[tuple[int, str]] = []
        size = 0
        while self._queue and len(batch) < BATCH_EVENTS:
            size += len(self._queue[0][1].encode()) + EVENT_OVERHEAD_BYTES
            if batch and size > BATCH_BYTES:
                break
            batch.append(self._queue.popleft())
        return batch

    def _deliver(self, batch: list[tuple[int, str]]) -> None:
        if not self._stream_exists:
            try:
                self._client.create_log_stream(**self._target)
            except ClientError as error:
                if error.response["Error"]["Code"] != "ResourceAlreadyExistsException":
                    raise
            self._stream_exists = True
        ordered = sorted(batch, key=lambda item: item[0])
        events = [{"timestamp": milliseconds, "message": message} for milliseconds, message in ordered]
        self._client.put_log_events(**self._target, logEvents=events)
        if self._dropped:
            logger.warning("%s: queue full: %d events are only in the events file", self._target, self._dropped)
            self._dropped = 0


def _message(event: Mapping[str, Any]) -> str:
    """Return the event as JSON. Drop all but the common keys if it exceeds the service limit."""
    text = json.dumps(event)
    if len(text) <= MAX_EVENT_BYTES:  # ASCII: one byte per character
        return text
    common = {key: event[key] for key in ("schema_version", "event", "unix_seconds", "instance_id") if key in event}
    return json.dumps({**common, "too_long_bytes": len(text)})
