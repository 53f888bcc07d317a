from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.servers.local_moto import local_moto
from tests.bootstrap.account import Account


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    with local_moto() as endpoint:
        yield endpoint


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
