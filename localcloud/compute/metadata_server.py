"""The instance metadata service: one small HTTP server for each instance, on the instance's own address.

Version 2 always; version 1 only when the instance's HttpTokens is "optional". Not here: what the paths say
(`metadata`).
Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html, read 2026-11.
"""

from __future__ import annotations

import logging
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from localcloud.compute.addresses import is_on_this_machine
from localcloud.compute.instance import Instance
from localcloud.compute.metadata import MetadataSources, lookup

_logger = logging.getLogger(__name__)

_TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path
_TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105 - a header's name
_TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
_MAXIMUM_TTL_SECONDS = 21600
_IDLE_SECONDS = 30


class MetadataServer(ThreadingHTTPServer):
    """Serves one instance until closed."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: str, instance: Instance, sources: MetadataSources, clock: Callable[[], float]) -> None:
        self.instance = instance
        self.sources = sources
        self._clock = clock
        self._tokens: dict[str, float] = {}
        super().__init__((address, 0), _Handler)

    @property
    def url(self) -> str:
        """Return the base URL with a slash at its end, as the SDKs' variable wants it."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/"

    def new_token(self, ttl_seconds: int) -> str:
        """Return a session token that is good for `ttl_seconds`."""
        now = self._clock()
        token = secrets.token_urlsafe(42)
        self._tokens = {kept: end for kept, end in self._tokens.items() if end > now} | {token: now + ttl_seconds}
        return token

    def knows(self, token: str) -> bool:
        """Tell whether a token was given out and has not expired."""
        return self._tokens.get(token, 0.0) > self._clock()

    def server_bind(self) -> None:
        """Bind without the reverse look-up of the host name that HTTPServer does."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a broken connection quietly: clients are killed in the middle of requests here."""
        _logger.debug("metadata of %s: request broken off", self.instance.id, exc_info=sys.exc_info())


class _Handler(BaseHTTPRequestHandler):
    server: MetadataServer
    protocol_version = "HTTP/1.1"
    server_version = "EC2ws"
    sys_version = ""
    timeout = _IDLE_SECONDS

    def do_PUT(self) -> None:
        """Answer a request for a token."""
        options = self.server.instance.metadata_options
        ttl = self.headers.get(_TTL_HEADER, "")
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        if options["HttpEndpoint"] == "disabled" or "X-Forwarded-For" in self.headers:
            self._answer(403, "Forbidden")
        elif self.path != _TOKEN_PATH:
            self._answer(404, "Not Found")
        elif not ttl.isdigit() or not 1 <= int(ttl) <= _MAXIMUM_TTL_SECONDS:
            self._answer(400, "Bad Request")
        else:
            # The hop limit is the IP time-to-live of the answer, so that a token does not leave the machine.
            self.connection.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, int(options["HttpPutResponseHopLimit"]))
            self._answer(200, self.server.new_token(int(ttl)), {_TTL_HEADER: ttl})

    def do_GET(self) -> None:
        """Answer a request for metadata."""
        instance = self.server.instance
        options = instance.metadata_options
        token = self.headers.get(_TOKEN_HEADER)
        if options["HttpEndpoint"] == "disabled":
            self._answer(403, "Forbidden")
        elif not (options["HttpTokens"] == "optional" if token is None else self.server.knows(token)):
            self._answer(401, "Unauthorized")
        else:
            text = lookup(instance, self.server.sources, self.path.partition("?")[0])
            self._answer(404, "Not Found") if text is None else self._answer(200, text)

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        """Log through this package's logger, at debug level."""
        _logger.debug("metadata of %s: " + format, self.server.instance.id, *arguments)

    def _answer(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        body = text.encode("utf-8", errors="surrogateescape")
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class MetadataServers:
    """The metadata servers of all instances that run."""

    def __init__(self, sources: MetadataSources, clock: Callable[[], float] = time.time) -> None:
        self._sources = sources
        self._clock = clock
        self._lock = threading.Lock()
        self._servers: dict[str, MetadataServer] = {}

    def open(self, instance: Instance) -> str:
        """Serve the instance's metadata; return the URL, on the instance's address when that is on this machine."""
        with self._lock:
            if instance.id in self._servers:
                return self._servers[instance.id].url
            server = self._bound(instance)
            self._servers[instance.id] = server
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.2}, name=f"metadata-{instance.id}", daemon=True
        ).start()
        return server.url

    def close_one(self, instance_id: str) -> None:
        """Stop serving an instance; one that is not served is no error."""
        with self._lock:
            server = self._servers.pop(instance_id, None)
        if server is not None:
            server.shutdown()
            server.server_close()
            self._sources.credentials.forget(instance_id)

    def close(self) -> None:
        """Stop serving all instances."""
        for instance_id in list(self._servers):
            self.close_one(instance_id)

    def _bound(self, instance: Instance) -> MetadataServer:
        if is_on_this_machine(instance.private_address):
            try:
                return MetadataServer(instance.private_address, instance, self._sources, self._clock)
            except OSError as error:
                # Systems other than Linux answer on 127.0.0.1 only.
                _logger.info("%s: no metadata on %s: %s", instance.id, instance.private_address, error)
        return MetadataServer("127.0.0.1", instance, self._sources, self._clock)
