"""A program that downloads byte ranges over many HTTP connections and writes them to their offsets in files.

Standard input: lines of JSON with `id`, `url`, signed `headers`, the file's `path`, the `first` byte and the `count`.
Standard output: one line for each request, in any order, with `id`. For a failure, it also contains `problem` with the
HTTP `status`, the S3 error `code`, or the disk's `errno`. The program exits when its input ends.

It imports only the standard library, so it starts fast. TLS acquires the interpreter lock for every 16 KiB, so several
worker processes share the connections.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import queue
import re
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import SplitResult, urlsplit

BUFFER_BYTES = 256 * 1024
RANGE_LIMIT_SECONDS = 120
"""Timeout for one range, even if it makes progress, because another connection may be faster."""
_ERROR_BYTES = 64 * 1024


class RangeError(Exception):
    """A range could not be downloaded."""

    def __init__(self, problem: str, **fields: Any) -> None:
        super().__init__(problem)
        self.answer = {"problem": problem, **fields}


class Fetcher:
    """Downloads ranges one at a time over one persistent connection."""

    def __init__(self, timeout_seconds: float, authorities: str) -> None:
        self._timeout_seconds = timeout_seconds
        self._authorities = authorities
        self._connection: http.client.HTTPConnection | None = None
        self._server = ("", "")
        self._view = memoryview(bytearray(BUFFER_BYTES))

    def fetch(self, task: dict[str, Any]) -> dict[str, Any]:
        """Download one range and return the result without its id."""
        try:
            self._fetch(task)
        except RangeError as error:
            self._close()
            return error.answer
        except (OSError, http.client.HTTPException) as error:
            self._close()
            return {"problem": f"{type(error).__name__}: {error}"}
        return {}

    def _fetch(self, task: dict[str, Any]) -> None:
        deadline = time.monotonic() + RANGE_LIMIT_SECONDS
        answer = self._ask(task)
        first, count = task["first"], task["count"]
        if answer.status != 206:
            text = answer.read(_ERROR_BYTES).decode(errors="replace")
            code = re.search(r"<Code>(\w+)</Code>", text)
            raise RangeError(
                f"HTTP {answer.status} {answer.reason}", status=answer.status, code=code.group(1) if code else None
            )
        named = answer.headers.get("Content-Range", "")
        if not named.startswith(f"bytes {first}-{first + count - 1}/"):
            raise RangeError(f"unexpected Content-Range {named!r}, expected bytes {first}-{first + count - 1}")
        with _file(task["path"]) as file:
            self._copy(answer, file, first, count, deadline)

    def _copy(self, answer: http.client.HTTPResponse, file: int, first: int, count: int, deadline: float) -> None:
        received = 0
        while received < count:
            got = answer.readinto(self._view[: min(BUFFER_BYTES, count - received)])
            if not got:
                raise RangeError(f"the response ended after {received} of {count} bytes")
            _write(file, self._view[:got], first + received)
            received += got
            if time.monotonic() > deadline:
                raise RangeError(f"received only {received} of {count} bytes in {RANGE_LIMIT_SECONDS} seconds")
        answer.read()  # read the response to its end, so that the connection can be reused

    def _ask(self, task: dict[str, Any]) -> http.client.HTTPResponse:
        parts = urlsplit(task["url"])
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        reused = self._connection is not None and self._server == (parts.scheme, parts.netloc)
        for is_last in (False, True) if reused else (True,):
            connection = self._connect(parts)
            try:
                connection.request("GET", target, headers=task["headers"])
                return connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError):
                self._close()
                if is_last:  # the server may have closed the reused connection while it was idle
                    raise
        raise AssertionError("each iteration returns or raises")

    def _connect(self, parts: SplitResult) -> http.client.HTTPConnection:
        if self._connection is None or self._server != (parts.scheme, parts.netloc):
            self._close()
            self._server = (parts.scheme, parts.netloc)
            if parts.scheme == "https":
                context = ssl.create_default_context(cafile=self._authorities)
                self._connection = http.client.HTTPSConnection(
                    parts.netloc, timeout=self._timeout_seconds, context=context
                )
            else:
                self._connection = http.client.HTTPConnection(parts.netloc, timeout=self._timeout_seconds)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


@contextlib.contextmanager
def _file(path: str) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except OSError as error:
        raise _disk_error(error) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: memoryview, position: int) -> None:
    try:
        while data:
            written = os.pwrite(descriptor, data, position)
            data, position = data[written:], position + written
    except OSError as error:
        raise _disk_error(error) from error


def _disk_error(error: OSError) -> RangeError:
    return RangeError(error.strerror or str(error), errno=errno.errorcode.get(error.errno or 0, "EIO"))


def _work(tasks: queue.SimpleQueue[dict[str, Any]], fetcher: Fetcher) -> None:
    while True:
        task = tasks.get()
        line = json.dumps({"id": task["id"], **fetcher.fetch(task)}) + "\n"
        os.write(1, line.encode())  # less than PIPE_BUF: written atomically


def main() -> None:
    """Serve requests. Arguments: number of connections, timeout in seconds, file of trusted CA certificates."""
    connections, timeout_seconds, authorities = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    tasks: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for _ in range(connections):
        fetcher = Fetcher(timeout_seconds, authorities)
        threading.Thread(target=_work, args=(tasks, fetcher), daemon=True).start()
    for line in sys.stdin:
        tasks.put(json.loads(line))
    os._exit(0)  # the parent has exited: stop writing, because its successor may write to the same file


if __name__ == "__main__":
    main()
