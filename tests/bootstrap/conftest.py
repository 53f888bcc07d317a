from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from tests.bootstrap.account import Account


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def aws_environment(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Point boto3 and s5cmd at moto."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    return moto_endpoint


@pytest.fixture
def account(aws_environment: str, request: pytest.FixtureRequest) -> Account:
    digest_of_name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]
    return Account(aws_environment, f"t{digest_of_name}")


@pytest.fixture
def stand_in() -> str:
    return (Path(__file__).parent / "stand_in_trainer.py").read_text()
