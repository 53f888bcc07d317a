"""A moto server: an AWS account in memory, for benchmarks and tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer


@contextmanager
def local_moto(address: str = "127.0.0.1") -> Iterator[str]:
    """Run a server on a free port; yield its endpoint. Its state remains in this process after the server stops."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def endpoint_environment(endpoint: str) -> dict[str, str]:
    """Return environment variables that direct AWS requests to an endpoint, with dummy credentials."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def client_options(endpoint: str) -> dict[str, str]:
    """Return the arguments of a boto3 client for an endpoint, with dummy credentials."""
    variables = endpoint_environment(endpoint)
    return {
        "endpoint_url": endpoint,
        "aws_access_key_id": variables["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": variables["AWS_SECRET_ACCESS_KEY"],
        "region_name": variables["AWS_DEFAULT_REGION"],
    }
