"""An AWS account in memory (moto) behind a port of this machine, for experiments and tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer


@contextmanager
def local_moto(address: str = "127.0.0.1") -> Iterator[str]:
    """Serve an account on a free port; yield its endpoint. What it holds outlives it in this process."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def endpoint_environment(endpoint: str) -> dict[str, str]:
    """Variables that send a process's requests to an endpoint without an account."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def client_options(endpoint: str) -> dict[str, str]:
    """Arguments of a boto3 client for an endpoint without an account."""
    variables = endpoint_environment(endpoint)
    return {
        "endpoint_url": endpoint,
        "aws_access_key_id": variables["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": variables["AWS_SECRET_ACCESS_KEY"],
        "region_name": variables["AWS_DEFAULT_REGION"],
    }
