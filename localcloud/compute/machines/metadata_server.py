"""The instance metadata service, with an HTTP server for each instance that listens on the instance's own address.

IMDSv2 is always enabled. IMDSv1 is enabled only if the instance's HttpTokens is "optional". `metadata` defines the
paths.
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

from localcloud.compute.launch.addresses import is_loopback
from localcloud.compute.machines.instance import Instance
from localcloud.compute.machines.metadata import MetadataSources, lookup

_logger = logging.getLogger(__name__)

_TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path
_TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105 - a header's name
_TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
_MAXIMUM_TTL_SECONDS = 21600
_IDLE_SECONDS = 30


class MetadataServer(ThreadingHTTPServer):
    """An instance's metadata server."""

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
        """The base URL with a trailing slash, as AWS_EC2_METADATA_SERVICE_ENDPOINT requires."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/"

    def new_token(self, ttl_seconds: int) -> str:
        """Return a session token that is valid for `ttl_seconds`."""
        now = self._clock()
        token = secrets.token_urlsafe(42)
        self._tokens = {kept: end for kept, end in self._tokens.items() if end > now} | {token: now + ttl_seconds}
        return token

    def knows(self, token: str) -> bool:
        """Return True if the token was issued and has not expired."""
        return self._tokens.get(token, 0.0) > self._clock()

    def server_bind(self) -> None:
        """Bind without HTTPServer's reverse host name lookup."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a broken connection at debug level, since fault injection kills clients in the middle of requests."""
        _logger.debug("metadata of %s: request aborted", self.instance.id, exc_info=sys.exc_info())


class _Handler(BaseHTTPRequestHandler):
    server: MetadataServer
    protocol_version = "HTTP/1.1"
    server_version = "EC2ws"
    sys_version = ""
    timeout = _IDLE_SECONDS

    def do_PUT(self) -> None:
        """Respond to a token request."""
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
            # The hop limit is the response's IP time-to-live, which prevents the token from leaving the machine.
            self.connection.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, int(options["HttpPutResponseHopLimit"]))
            self._answer(200, self.server.new_token(int(ttl)), {_TTL_HEADER: ttl})

    def do_GET(self) -> None:
        """Respond to a metadata request."""
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
        """Log through this package's logger at debug level."""
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
    """The metadata servers of all running instances."""

    def __init__(self, sources: MetadataSources, clock: Callable[[], float] = time.time) -> None:
        self._sources = sources
        self._clock = clock
        self._lock = threading.Lock()
        self._servers: dict[str, MetadataServer] = {}

    def open(self, instance: Instance) -> str:
        """Serve the instance's metadata, on its own address if that is a loopback address. Return the URL."""
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
        """Stop an instance's server, if it has one."""
        with self._lock:
            server = self._servers.pop(instance_id, None)
        if server is not None:
            server.shutdown()
            server.server_close()
            self._sources.credentials.forget(instance_id)

    def close(self) -> None:
        """Stop all servers."""
        for instance_id in list(self._servers):
            self.close_one(instance_id)

    def _bound(self, instance: Instance) -> MetadataServer:
        if is_loopback(instance.private_address):
            try:
                return MetadataServer(instance.private_address, instance, self._sources, self._clock)
            except OSError as error:
                # By default, systems other than Linux can only listen on 127.0.0.1.
                _logger.info("%s: cannot serve metadata on %s: %s", instance.id, instance.private_address, error)
        return MetadataServer("127.0.0.1", instance, self._sources, self._clock)
