"""A moto server in this process, with stand-ins for the gateway's clients, role sessions and calls."""

from __future__ import annotations

import io
import json
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest

from benchmarks.servers.local_moto import local_moto
from localcloud.api import ApiError, Call, Credentials, Principal
from localcloud.events.bus import LocalEventBus
from localcloud.functions.service import FunctionService

ACCOUNT = "123456789012"
REGION = "us-east-1"
ROOT = Principal(f"arn:aws:iam::{ACCOUNT}:root", ACCOUNT, "root")


_making = threading.Lock()
_session = boto3.session.Session()


@cache
def _made(service: str, endpoint_url: str, region: str) -> Any:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    return _session.client(service, region_name=region, endpoint_url=endpoint_url, **keys)


def moto_client(service: str, endpoint_url: str, region: str) -> Any:
    """Return the shared client of a service; creating a client is slower than most calls, and is not thread-safe."""
    with _making:
        return _made(service, endpoint_url, region)


@dataclass
class MotoClients:
    """api.Clients with moto clients only."""

    endpoint_url: str
    region: str = REGION
    account: str = ACCOUNT

    def client(self, service: str, *, role_arn: str | None = None, region: str | None = None) -> Any:
        return self.direct(service)

    def direct(self, service: str, *, region: str | None = None) -> Any:
        return moto_client(service, self.endpoint_url, self.region)


@dataclass
class FakeIssuer:
    """api.CredentialIssuer that records the issued sessions."""

    lifetime_seconds: float = 3600.0
    refused_roles: set[str] = field(default_factory=set)
    issued: list[tuple[str, str, str]] = field(default_factory=list)

    def issue(
        self,
        role_arn: str,
        session_name: str,
        *,
        trusted_service: str,
        duration_seconds: int,
        source_arn: str | None = None,
    ) -> Credentials:
        if role_arn in self.refused_roles:
            raise ApiError("AccessDenied", f"{role_arn} does not trust {trusted_service}", 403)
        self.issued.append((role_arn, session_name, trusted_service))
        number = len(self.issued)
        return Credentials(f"ASIA{number:016d}", "secret", f"token-{number}", time.time() + self.lifetime_seconds)


@dataclass
class Cloud:
    clients: MotoClients
    issuer: FakeIssuer
    state: Path
    functions: FunctionService

    def call(self, operation: str, **parameters: Any) -> Mapping[str, Any]:
        """Handle a Lambda call as the gateway does: in the service if it has a handler, otherwise in moto."""
        handler = self.functions.operations().get(operation)
        if handler is None:
            name = "".join(f"_{c.lower()}" if c.isupper() else c for c in operation).lstrip("_")
            return getattr(self.clients.direct("lambda"), name)(**parameters)
        return handler(Call("lambda", operation, parameters, ROOT, REGION, ACCOUNT))

    @staticmethod
    def package(source: str, **files: str) -> bytes:
        return package(source, **files)

    @staticmethod
    def wait_for(condition: Callable[[], Any], what: str, deadline_seconds: float = 90.0) -> Any:
        return wait_for(condition, what, deadline_seconds)

    def role(self, name: str = "function-role") -> str:
        iam = self.clients.direct("iam")
        try:
            return iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        except iam.exceptions.EntityAlreadyExistsException:
            return f"arn:aws:iam::{ACCOUNT}:role/{name}"

    def create(self, name: str, source: str, **settings: Any) -> str:
        """Create a function from the source of its only module; return its ARN."""
        parameters = {
            "FunctionName": name,
            "Runtime": "python3.11",
            "Handler": "main.handler",
            "Role": self.role(),
            "Code": {"ZipFile": package(source)},
            "Timeout": 20,
            **settings,
        }
        return str(self.call("CreateFunction", **parameters)["FunctionArn"])

    def records(self, kind: str) -> list[dict[str, Any]]:
        path = self.state / "records.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def log(self, name: str) -> str:
        path = self.state / "functions" / f"{name}.log"
        return path.read_text() if path.exists() else ""


def package(source: str, **files: str) -> bytes:
    """Return a zip file with main.py and `files` (a double underscore replaces a dot)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("main.py", source)
        for name, content in files.items():
            archive.writestr(name.replace("__", "."), content)
    return buffer.getvalue()


def wait_for(condition: Callable[[], Any], what: str, deadline_seconds: float = 90.0) -> Any:
    """Poll `condition` until the deadline; return its first true value."""
    deadline = time.monotonic() + deadline_seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {deadline_seconds} s for {what}")


@pytest.fixture(scope="session", name="package")
def package_fixture() -> Callable[..., bytes]:
    return package


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    return wait_for


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    with local_moto() as endpoint:
        yield endpoint


@pytest.fixture
def cloud(moto_endpoint: str, tmp_path: Path) -> Iterator[Cloud]:
    import urllib.request

    urllib.request.urlopen(urllib.request.Request(f"{moto_endpoint}/moto-api/reset", method="POST")).read()
    clients, issuer = MotoClients(moto_endpoint), FakeIssuer()
    functions = FunctionService(clients, issuer, tmp_path, retry_delays_seconds=(0.05, 0.1))
    yield Cloud(clients, issuer, tmp_path, functions)
    functions.close()


@pytest.fixture
def bus(cloud: Cloud) -> Iterator[LocalEventBus]:
    made = LocalEventBus(cloud.clients, cloud.functions)
    yield made
    made.close()
