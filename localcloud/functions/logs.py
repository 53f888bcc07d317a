"""Writes function output to a file in the state directory, and to CloudWatch Logs if the function's role allows it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from localcloud.api import ApiError

_logger = logging.getLogger(__name__)

BATCH_EVENTS = 1000
CLOSE_SECONDS = 5.0
EVENT_LIMIT_BYTES = 256 * 1024
"""Source: https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_InputLogEvent.html (read 2026-11).
CloudWatch Logs has accepted up to 1 MiB since 2025, but the older limit keeps batches small."""


@dataclass(frozen=True)
class LogStream:
    """A process's log stream, with its file, log group and client."""

    path: Path
    group: str
    name: str
    logs_client: Callable[[], Any]
    """Returns a boto3 logs client that signs its calls with the role's credentials."""


class LogShipper:
    """Writes lines to files immediately, and to CloudWatch Logs from one thread, in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[LogStream, int, str] | threading.Event | None] = queue.SimpleQueue()
        self._file_lock = threading.Lock()
        self._ready: set[str] = set()
        self._refused: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="function-logs", daemon=True)
        self._thread.start()

    def write(self, stream: LogStream, line: str) -> None:
        """Write a line of output, without its newline."""
        with self._file_lock, stream.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._queue.put((stream, int(time.time() * 1000), line))

    def flush(self, deadline_seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until all lines so far have been shipped or rejected. Return False at the deadline."""
        done = threading.Event()
        self._queue.put(done)
        return done.wait(deadline_seconds)

    def close(self) -> None:
        """Ship the remaining lines, waiting at most CLOSE_SECONDS."""
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            batch: list[tuple[LogStream, int, str]] = []
            while isinstance(item, tuple):
                batch.append(item)
                if self._queue.empty() or len(batch) >= BATCH_EVENTS:
                    break
                item = self._queue.get()
            for stream in dict.fromkeys(entry[0] for entry in batch):
                self._ship(stream, ((milliseconds, line) for owner, milliseconds, line in batch if owner == stream))
            if isinstance(item, threading.Event):
                item.set()
            elif item is None:
                return

    def _ship(self, stream: LogStream, lines: Iterable[tuple[int, str]]) -> None:
        if stream.name in self._refused:
            return
        events = [
            {"timestamp": milliseconds, "message": line.encode()[:EVENT_LIMIT_BYTES].decode(errors="ignore")}
            for milliseconds, line in lines
            if line  # CloudWatch Logs rejects empty messages
        ]
        if not events:
            return
        try:
            client = stream.logs_client()
            if stream.name not in self._ready:
                _create_stream(client, stream)
                self._ready.add(stream.name)
            client.put_log_events(logGroupName=stream.group, logStreamName=stream.name, logEvents=events)
        except (ApiError, ClientError, BotoCoreError) as error:
            # As on AWS, the function still runs if its output cannot be sent to CloudWatch Logs.
            self._refused.add(stream.name)
            _logger.warning(
                "%s: cannot write to CloudWatch Logs; the output is only in %s: %s", stream.group, stream.path, error
            )


def _create_stream(client: Any, stream: LogStream) -> None:
    try:
        client.create_log_stream(logGroupName=stream.group, logStreamName=stream.name)
    except client.exceptions.ResourceNotFoundException:
        try:
            client.create_log_group(logGroupName=stream.group)
        except client.exceptions.ResourceAlreadyExistsException:
            _logger.debug("%s was created by another process in the meantime", stream.group)
        client.create_log_stream(logGroupName=stream.group, logStreamName=stream.name)
