"""The cloud's HTTP/1.1 server: cheroot, listening on 127.0.0.1."""

from __future__ import annotations

import logging
from typing import Any

from cheroot.wsgi import Gateway_10, Server
from moto.core.request import (
    PRESERVED_HEADER_NAMES_ENVIRON_KEY,
    environ_key_for_header,
    should_preserve_original_header_name,
)

logger = logging.getLogger(__name__)
ADDRESS = "127.0.0.1"
# Handlers also call the cloud (for example, when they deploy stacks). With few threads, all of them could block.
SERVER_THREADS = 64
# A call fails if the client reuses an idle connection just as the server closes it. During a deployment, the pauses
# between calls are shorter than this.
IDLE_SECONDS = 600


class NamedHeaders(Gateway_10):
    """Preserves S3 metadata header names, since WSGI does not distinguish x-amz-meta-a_b from x-amz-meta-a-b."""

    def get_environ(self) -> Any:
        """Return the request's WSGI environment."""
        environ: dict[str, Any] = super().get_environ()  # type: ignore[no-untyped-call]
        names = (name.decode("latin-1") for name in self.req.inheaders)
        environ[PRESERVED_HEADER_NAMES_ENVIRON_KEY] = {
            environ_key_for_header(name): name for name in names if should_preserve_original_header_name(name)
        }
        return environ


def listen(preferred_port: int) -> Server:
    """Return a server bound to the preferred port, or to any free port if the preferred port is in use."""
    try:
        return _bound(preferred_port)
    except OSError:
        logger.warning("port %d is in use; using another one", preferred_port)
        return _bound(0)


def _bound(port: int) -> Server:
    server = Server((ADDRESS, port), None, numthreads=SERVER_THREADS, request_queue_size=128)
    server.gateway = NamedHeaders
    server.timeout = IDLE_SECONDS
    server.prepare()
    return server
