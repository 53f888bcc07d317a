"""Access to the control API (tokens, Host and Origin), and the user that runs an instance's processes."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from localcloud.cloud import LocalCloud
from localcloud.compute.machines.process_users import obstacle
from localcloud.gateway import CONTROL_BYTES
from localcloud.state import CloudFile
from localcloud.tokens import TOKEN_HEADER, control_token, power_token

VICTIM, THIEF = "i-0123456789abcdef0", "i-0fedcba9876543210"


def ask(
    cloud: LocalCloud,
    path: str,
    body: bytes | None = None,
    *,
    token: str | None = None,
    host: str | None = None,
    **headers: str,
) -> tuple[int, Any]:
    """Send a request to the control API with the given headers only; return the status and the response."""
    address = urlsplit(cloud.endpoint_url)
    connection = http.client.HTTPConnection(address.netloc, timeout=20)
    sent = {"Host": host or address.netloc, **{name.replace("_", "-"): value for name, value in headers.items()}}
    if token is not None:
        sent[TOKEN_HEADER] = token
    connection.request("GET" if body is None else "POST", f"/_localcloud/{path}", body, sent)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, json.loads(content or b"null")


def order(instance_id: str) -> bytes:
    return json.dumps({"instance_id": instance_id}).encode()


def test_control_token_opens_the_api(cloud: LocalCloud) -> None:
    assert ask(cloud, "compute/instances", token=cloud.control_token) == (200, [])
    port = urlsplit(cloud.endpoint_url).port
    assert ask(cloud, "core/usage", token=cloud.control_token, host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize("path", ["core/usage", "compute/instances", "compute/console?instance_id=i-1", "x/y"])
@pytest.mark.parametrize("token", [None, "", "x", "\u00e9", "0" * 64])
def test_request_without_the_token_is_rejected_with_a_remedy(cloud: LocalCloud, path: str, token: str | None) -> None:
    status, answer = ask(cloud, path, token=token)
    assert status == 403
    assert "python -m localcloud" in answer["error"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1"])
def test_request_under_another_name_is_rejected(cloud: LocalCloud, host: str) -> None:
    """If a web page's name resolves to 127.0.0.1 (DNS rebinding), its requests reach the port with the page's Host."""
    host = host.format(port=urlsplit(cloud.endpoint_url).port)
    status, answer = ask(cloud, "compute/instances", token=cloud.control_token, host=host)
    assert status == 403
    assert host in answer["error"]


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "none"}])
def test_request_of_a_web_page_is_rejected(cloud: LocalCloud, headers: dict[str, str]) -> None:
    assert ask(cloud, "compute/refuse", b"{}", token=cloud.control_token, **headers)[0] == 403


def test_power_token_is_for_one_instance_and_one_order(cloud: LocalCloud) -> None:
    token = power_token(cloud.identity.root_secret, THIEF)
    status, answer = ask(cloud, "compute/poweroff", order(THIEF), token=token)
    assert (status, "does not exist" in answer["error"]) == (400, True)  # it reached the service
    assert ask(cloud, "compute/poweroff", order(VICTIM), token=token)[0] == 403
    for path in ("compute/interrupt", "compute/freeze", "compute/poweroff/", "compute//poweroff"):
        assert ask(cloud, path, order(THIEF), token=token)[0] == 403
    for body in (b"", b"[]", b'{"instance_id": 1}', b"\xff", b"[" * 100_000):
        assert ask(cloud, "compute/poweroff", body, token=token)[0] == 403


def test_long_body_is_rejected(cloud: LocalCloud) -> None:
    assert ask(cloud, "compute/refuse", b" " * (CONTROL_BYTES + 1), token=cloud.control_token)[0] == 413


def test_tokens_differ_by_cloud_and_purpose(cloud: LocalCloud) -> None:
    tokens = [
        token
        for secret in (cloud.identity.root_secret, "another")
        for token in (control_token(secret), power_token(secret, VICTIM), power_token(secret, THIEF))
    ]
    assert len(set(tokens)) == len(tokens)
    running = CloudFile("http://127.0.0.1:1", "us-east-1", "1", 1, 0.0, "key", cloud.identity.root_secret)
    assert running.control_token == cloud.control_token


def test_first_unreachable_path_is_the_obstacle(tmp_path: Path) -> None:
    folder, file = tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    file.touch()
    for path, mode in ((tmp_path, 0o755), (folder.parent, 0o711), (folder, 0o755), (file, 0o644)):
        path.chmod(mode)
    found = obstacle([file])
    assert found is None or found in tmp_path.parents  # other users cannot enter pytest's own folder
    file.chmod(0o640)
    if found is None:
        assert obstacle([file]) == file
    folder.parent.chmod(0o750)
    link = tmp_path / "link"
    link.symlink_to(file)
    assert obstacle([link]) in (folder.parent, found)
