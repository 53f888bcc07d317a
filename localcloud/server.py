"""The HTTP/1.1 server of the cloud: threads of cheroot on a port of 127.0.0.1.

Not here: what a request means and who answers it (`gateway`).
"""

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
# Handlers call back into the cloud (a function that is invoked, a stack that is deployed): few threads could all wait.
SERVER_THREADS = 64


class NamedHeaders(Gateway_10):
    """Keeps how the names of S3's metadata were spelled: WSGI cannot tell x-amz-meta-a_b from x-amz-meta-a-b."""

    def get_environ(self) -> Any:
        """Return the WSGI environment of the request, a mapping."""
        environ: dict[str, Any] = super().get_environ()  # type: ignore[no-untyped-call]
        names = (name.decode("latin-1") for name in self.req.inheaders)
        environ[PRESERVED_HEADER_NAMES_ENVIRON_KEY] = {
            environ_key_for_header(name): name for name in names if should_preserve_original_header_name(name)
        }
        return environ


def listen(preferred_port: int) -> Server:
    """Return a server that is bound to the preferred port, or to any other when that one is busy."""
    try:
        return _bound(preferred_port)
    except OSError:
        logger.warning("port %d is busy: another one is taken", preferred_port)
        return _bound(0)


def _bound(port: int) -> Server:
    server = Server((ADDRESS, port), None, numthreads=SERVER_THREADS, request_queue_size=128)
    server.gateway = NamedHeaders
    server.prepare()
    return server
