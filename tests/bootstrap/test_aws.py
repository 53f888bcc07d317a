from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import NoCredentialsError

from bootstrap.aws import Aws

ACCELERATING = """[default]
s3 =
    use_accelerate_endpoint = true
"""


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate an image whose AWS configuration enables transfer acceleration."""
    (tmp_path / "config").write_text(ACCELERATING)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_transfer_acceleration_is_not_used(image: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    aws = Aws("eu-west-1")
    url, headers = aws.signed_get("bucket", "datasets/a b.bin", {"Range": "bytes=0-1", "If-Match": '"1"'})
    assert urlsplit(url).netloc == "bucket.s3.eu-west-1.amazonaws.com"
    assert urlsplit(url).path == "/datasets/a%20b.bin"
    assert "if-match;range" in headers["Authorization"].replace("host;", "")
    urls: list[str] = []

    def abort(request: Any, **_: Any) -> None:
        urls.append(request.url)
        raise ConnectionAbortedError

    aws.client("s3").meta.events.register("before-send.s3", abort)
    with pytest.raises(ConnectionAbortedError):
        aws.client("s3").get_object(Bucket="bucket", Key="datasets/a b.bin")
    assert urls == [url]  # boto3 and signed_get use the same URL


def test_other_servers_get_path_style_urls(image: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000/")
    assert Aws("eu-west-1").signed_get("bucket", "k", {})[0] == "http://127.0.0.1:9000/bucket/k"


def test_signing_needs_credentials(image: None) -> None:
    with pytest.raises(NoCredentialsError):
        Aws("eu-west-1").signed_get("bucket", "k", {})
