"""If an endpoint accepts connections but never responds, the boot fails within seconds, with a report."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

from tests.bootstrap.account import Account
from tests.bootstrap.metadata_server import MetadataServer

REPOSITORY = Path(__file__).parent.parent.parent.parent
BOOT_TIMEOUT_SECONDS = 2
LIMIT_SECONDS = 120


def test_an_unresponsive_endpoint_ends_the_boot(account: Account, tmp_path: Path) -> None:
    metadata = MetadataServer("i-0001", "127.0.0.21")
    supervise = {**account.node()["supervise"], "boot_timeout_seconds": BOOT_TIMEOUT_SECONDS}
    (tmp_path / "node.json").write_text(json.dumps(account.node(supervise=supervise)))
    shutdown = tmp_path / "shutdown"
    shutdown.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/shut-down\n')
    shutdown.chmod(shutdown.stat().st_mode | stat.S_IXUSR)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as unresponsive:
        environment = {
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.endpoint,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{unresponsive.getsockname()[1]}",
        }
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "bootstrap", "boot", "--root", str(tmp_path)],
                env=environment,
                cwd=tmp_path,
                check=False,
                capture_output=True,
                timeout=LIMIT_SECONDS,
            )
        finally:
            metadata.close()

    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    (failed,) = [event for event in events if event["event"] == "boot_failed"]
    assert ended.returncode == 1
    assert "run_document" in failed["step"] and "boot_timeout_seconds (2)" in failed["message"]
    assert failed["remedy"]
    assert (tmp_path / "shut-down").read_text() == "-h now\n"
