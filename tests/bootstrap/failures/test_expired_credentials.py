"""Role credentials expire every six hours during a run. Metadata provides newer ones, so no call is rejected."""

from __future__ import annotations

import datetime
import http.client
import http.server
import json
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from botocore.credentials import RefreshableCredentials

from bootstrap.aws import Aws
from bootstrap.supervise.membership.control import ControlStore
from tests.bootstrap.account import REGION, Account
from tests.bootstrap.metadata_server import MetadataServer
from tests.bootstrap.test_control import BEAT

SESSION_HOURS = 6
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


class Gate:
    """A proxy for S3 that rejects requests signed with an expired key; `keys` holds the keys of all requests."""

    def __init__(self, endpoint: str) -> None:
        self.expired: set[str] = set()
        self.keys: list[str] = []
        gate, behind = self, urlsplit(endpoint)

        class Handler(http.server.BaseHTTPRequestHandler):
            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                key = self.headers["Authorization"].partition("Credential=")[2].partition("/")[0]
                gate.keys.append(key)
                if key in gate.expired:
                    return self.answer(400, EXPIRED)
                connection = http.client.HTTPConnection(behind.hostname or "", behind.port, timeout=10)
                try:
                    connection.request(self.command, self.path, body, dict(self.headers))
                    answer = connection.getresponse()
                    return self.answer(answer.status, answer.read(), answer.getheader("ETag"))
                finally:
                    connection.close()

            do_GET = do_PUT = pass_on

            def answer(self, status: int, body: bytes, etag: str | None = None) -> None:
                self.send_response(status)
                if etag is not None:
                    self.send_header("ETag", etag)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def serve_credentials(metadata: MetadataServer, key: str, from_now_hours: float) -> None:
    """Serve these credentials from instance metadata."""
    expiration = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=from_now_hours)
    metadata.paths["iam/security-credentials/"] = "node"
    metadata.paths["iam/security-credentials/node"] = json.dumps(
        {
            "Code": "Success",
            "AccessKeyId": key,
            "SecretAccessKey": "secret",
            "Token": f"token-of-{key}",
            "Expiration": expiration.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
    )


@pytest.fixture
def gate(account: Account, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(account.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", gate.endpoint)
    yield gate
    gate.close()


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    metadata = MetadataServer("i-0001")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    yield metadata
    metadata.close()


def test_credentials_are_renewed_before_they_expire(
    account: Account, gate: Gate, metadata: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_credentials(metadata, "FIRST", SESSION_HOURS)
    store = ControlStore(Aws(REGION).client("s3", patience="low"), **account.scope())
    store.beat(BEAT)
    store.observe()
    assert set(gate.keys) == {"FIRST"}

    # Five minutes before the expiry: metadata serves the next credentials, and its token has expired as well.
    later = datetime.timedelta(hours=SESSION_HOURS, minutes=-5)
    remaining = RefreshableCredentials._seconds_remaining
    monkeypatch.setattr(
        RefreshableCredentials, "_seconds_remaining", lambda self: remaining(self) - later.total_seconds()
    )
    serve_credentials(metadata, "SECOND", 2 * SESSION_HOURS)
    metadata.tokens.clear()
    gate.expired.add("FIRST")
    gate.keys.clear()
    store.beat(BEAT)

    assert store.observe().heartbeats == {BEAT.instance_id: BEAT}
    assert set(gate.keys) == {"SECOND"}
