"""Commands that wait for AWS print progress: no silence exceeds five seconds, from the first line to the exit."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.stacks.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ANSWER_SECONDS = 11.0
"""Time to the response of each call; several times the longest silence."""
MAX_SILENT_SECONDS = 5.0
FILE = "config/single-gpu.yaml"
REFUSAL = b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>"


class Slow(BaseHTTPRequestHandler):
    """AWS, which refuses each call after ANSWER_SECONDS."""

    calls: list[str] = []

    def do_POST(self) -> None:  # noqa: N802
        self.calls.append(self.path)
        time.sleep(ANSWER_SECONDS)  # the slow service that the commands wait for
        self.send_response(403)
        self.send_header("Content-Length", str(len(REFUSAL)))
        self.end_headers()
        self.wfile.write(REFUSAL)

    do_GET = do_HEAD = do_PUT = do_POST  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    Slow.calls.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


def silences(command: list[str], endpoint: str, directory: Path) -> tuple[list[float], str]:
    """Run a command, and return the times between its outputs, with the first at its first output, and its text."""
    environment = {
        **os.environ, "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_EC2_METADATA_DISABLED": "true", "PYTHONPATH": str(ROOT), "HOME": str(directory),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    times, text = list[float](), b""
    with selectors.DefaultSelector() as selector, process:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select():
            chunk = os.read(process.stdout.fileno(), 65536)
            times.append(time.monotonic())
            if not chunk:
                break
            text += chunk
    return [later - earlier for earlier, later in zip(times, times[1:], strict=False)], text.decode()


@pytest.mark.parametrize(
    "command",
    [
        ["stacks", "ami", "lock", FILE],
        ["stacks", "check", "--aws", FILE],
        ["stacks", "diff", FILE],
        ["trainstack", "zombies", "--region", "us-east-1"],
    ],
    ids=lambda command: " ".join(command[1:3]),
)
def test_no_silence_exceeds_five_seconds(command: list[str], endpoint: str, tmp_path: Path) -> None:
    gaps, text = silences(command, endpoint, tmp_path)
    assert Slow.calls, f"the command waits for AWS: {text}"
    assert max(gaps) <= MAX_SILENT_SECONDS, (max(gaps), text)
    assert sum(gaps) >= ANSWER_SECONDS - 1.0, (gaps, text)
