"""An S3 endpoint with injected faults: a proxy in front of a real server.

It forwards the trainers' requests, or fails them as networks and S3 sometimes do.
"""

from __future__ import annotations

import http.client
import http.server
import random
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

S3Fault = Literal["errors", "slow-down", "timeouts", "truncated bodies", "lost responses"]

SILENCE_SECONDS = 1.5
"""Delay of a response that should time out; longer than the read timeout of the trainers under test."""
_HOP_HEADERS = {"connection", "transfer-encoding", "keep-alive", "content-length"}


@dataclass(frozen=True)
class Misbehaviour:
    """A fault, and the share of requests that it affects.

    ``delay_seconds`` delays every upload of an object, faulty or not, until the misbehavior changes.
    """

    fault: S3Fault | None = None
    share: float = 0.0
    delay_seconds: float = 0.0


class FaultyS3:
    """Listens on 127.0.0.1 until closed.

    Args:
        target: URL of the real server.
        seed: seed for choosing requests.
    """

    def __init__(self, target: str, seed: str) -> None:
        parts = urlsplit(target)
        assert parts.hostname is not None and parts.port is not None, "a local server has both"
        self._target = (parts.hostname, parts.port)
        self._random = random.Random(seed)  # noqa: S311 (not a secret)
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._misbehaviour = Misbehaviour()
        self.done: Counter[str] = Counter()
        outer = self

        class Handler(_Handler):
            proxy = outer

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def misbehaviour(self) -> Misbehaviour:
        """The current fault."""
        return self._misbehaviour

    @misbehaviour.setter
    def misbehaviour(self, misbehaviour: Misbehaviour) -> None:
        self._misbehaviour = misbehaviour
        previous, self._changed = self._changed, threading.Event()
        previous.set()

    def draw(self) -> S3Fault | None:
        """Choose the fault for one request."""
        with self._lock:
            fault = self.misbehaviour.fault
            if fault is None or self._random.random() >= self.misbehaviour.share:
                return None
            self.done[fault] += 1
            return fault

    def delay(self, seconds: float) -> None:
        """Delay a request, but only until the misbehavior changes."""
        self._changed.wait(seconds)

    def forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Send a request to the real server; return status, headers and body."""
        connection = http.client.HTTPConnection(*self._target, timeout=30)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def close(self) -> None:
        """Stop listening."""
        self.misbehaviour = Misbehaviour()
        self._server.shutdown()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore dead clients: the experiment kills them."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyS3

    def _serve(self) -> None:
        body = self._read_body()
        fault = self.proxy.draw()
        if self.command == "PUT" and self.proxy.misbehaviour.delay_seconds:
            self.proxy.delay(self.proxy.misbehaviour.delay_seconds)
        if fault == "errors":
            self._refuse(500, "InternalError")
        elif fault == "slow-down":
            self._refuse(503, "SlowDown")
        elif fault == "timeouts":
            self.proxy.delay(SILENCE_SECONDS)
            self.close_connection = True
        else:
            self._forward(body, fault)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

    def _read_body(self) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return self._read_chunks()
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _read_chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            continue
        return body

    def _forward(self, body: bytes, fault: S3Fault | None) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_HEADERS | {"expect"}}
        headers["Content-Length"] = str(len(body))
        try:
            status, response_headers, content = self.proxy.forward(self.command, self.path, headers, body)
        except OSError:
            # The real server is down; close the connection as it would.
            self.close_connection = True
            return
        if fault == "lost responses":
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in response_headers:
            if name.lower() not in _HOP_HEADERS | {"date", "server"}:
                self.send_header(name, value)
        length = next(
            (value for name, value in response_headers if name.lower() == "content-length"), str(len(content))
        )
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            cut = fault == "truncated bodies" and self.command == "GET"
            self.wfile.write(content[: len(content) // 2] if cut else content)
            self.close_connection = self.close_connection or cut

    def _refuse(self, status: int, code: str) -> None:
        content = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Do not log requests: faults are counted instead."""
