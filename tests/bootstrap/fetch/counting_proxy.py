"""A proxy for an S3 server: counts the ranges that it forwards, and breaks or delays those that a test selects."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import threading
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlsplit

Fate = Literal["pass", "slow down", "cut off", "hold", "close", "other bytes"]


class CountingProxy:
    """Serves until closed. `fate` decides how to handle each range of the named object, given its number (from 1) and
    offset."""

    def __init__(self, target: str, name: str) -> None:
        self.fate: Callable[[int, int], Fate] = lambda number, first: "pass"
        self._name = name
        self.ranges: list[tuple[int, int]] = []
        """Offset and length of each range that was forwarded completely."""
        self.requested = 0
        self.in_flight = 0
        self.changed = threading.Condition()
        self._released = threading.Event()
        proxy, netloc = self, urlsplit(target).netloc

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # the client was killed
                    super().handle()

            def do_GET(self) -> None:
                proxy.answer(self, netloc)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def fetched_bytes(self) -> int:
        return sum(count for _, count in self.ranges)

    def reset(self) -> None:
        """Release held requests, wait until none is in flight, and reset the counters; forward all later requests."""
        self._released.set()
        with self.changed:
            assert self.changed.wait_for(lambda: self.in_flight == 0, timeout=60)
            self.ranges.clear()
            self.fate = lambda number, first: "pass"

    def wait_for_requests(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.requested >= count, timeout=60)

    def answer(self, handler: http.server.BaseHTTPRequestHandler, netloc: str) -> None:
        requested = handler.headers.get("Range")
        fate: Fate = "pass"
        first, count = 0, 0
        if requested and self._name in handler.path and handler.command == "GET":
            first, last = (int(number) for number in requested.removeprefix("bytes=").split("-"))
            count = last - first + 1
            with self.changed:
                self.requested += 1
                self.in_flight += 1
                fate = self.fate(self.requested, first)
                self.changed.notify_all()
        try:
            self._answer(handler, netloc, fate, first, count)
        except ConnectionError:
            handler.close_connection = True  # the client has disconnected
        finally:
            with self.changed:
                self.in_flight -= 1 if count else 0
                self.changed.notify_all()

    def _answer(self, handler: Any, netloc: str, fate: Fate, first: int, count: int) -> None:
        if fate == "hold":
            self._released.wait()
        if fate in ("hold", "close"):
            handler.close_connection = True
            return
        if fate == "slow down":
            body = b"<Error><Code>SlowDown</Code></Error>"
            handler.send_response(503)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
            return
        upstream = http.client.HTTPConnection(netloc, timeout=30)
        upstream.request(handler.command, handler.path, headers=dict(handler.headers.items()))
        response = upstream.getresponse()
        body = response.read()
        handler.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() == "content-range" and fate == "other bytes":
                value = "bytes 0-0/1"
            if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "HEAD":
            upstream.close()
            return
        if fate == "cut off":
            handler.wfile.write(body[: len(body) // 2])
            handler.close_connection = True
        else:
            handler.wfile.write(body)
            if count and response.status == 206:
                with self.changed:
                    self.ranges.append((first, count))
        upstream.close()
