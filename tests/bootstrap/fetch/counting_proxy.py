"""A proxy before an S3 server: counts the ranges that it passes on, and spoils or holds those that a test names."""

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
    """Listens until closed; `fate` decides about each range of the named object, by its number from 1 on and place."""

    def __init__(self, target: str, name: str) -> None:
        self.fate: Callable[[int, int], Fate] = lambda number, first: "pass"
        self._name = name
        self.ranges: list[tuple[int, int]] = []
        """First byte and count of each range that was passed on whole."""
        self.asked = 0
        self.under_way = 0
        self.changed = threading.Condition()
        self._released = threading.Event()
        proxy, netloc = self, urlsplit(target).netloc

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # the other side was killed
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
        """Let go of what is held, wait until nothing is under way, and count anew; from now on all passes."""
        self._released.set()
        with self.changed:
            assert self.changed.wait_for(lambda: self.under_way == 0, timeout=60)
            self.ranges.clear()
            self.fate = lambda number, first: "pass"

    def wait_for_asked(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.asked >= count, timeout=60)

    def answer(self, handler: http.server.BaseHTTPRequestHandler, netloc: str) -> None:
        wanted = handler.headers.get("Range")
        fate: Fate = "pass"
        first, count = 0, 0
        if wanted and self._name in handler.path and handler.command == "GET":
            first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
            count = last - first + 1
            with self.changed:
                self.asked += 1
                self.under_way += 1
                fate = self.fate(self.asked, first)
                self.changed.notify_all()
        try:
            self._answer(handler, netloc, fate, first, count)
        except ConnectionError:
            handler.close_connection = True  # the other side is gone
        finally:
            with self.changed:
                self.under_way -= 1 if count else 0
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
        answer = upstream.getresponse()
        body = answer.read()
        handler.send_response(answer.status)
        for name, value in answer.getheaders():
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
            if count and answer.status == 206:
                with self.changed:
                    self.ranges.append((first, count))
        upstream.close()
