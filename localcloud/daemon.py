"""The background process behind `python -m localcloud up`."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import psutil

from localcloud.state import MARKER, CloudFile, read_cloud_file, write_cloud_file

START_SECONDS = 30.0


class StartFailed(Exception):
    """The cloud did not come up; the message holds the end of its log."""


def serve(state: Path, *, region: str, port: int) -> None:
    """Run a cloud in this process until SIGTERM or SIGINT."""
    from localcloud.cloud import LocalCloud
    from localcloud.identity import ROOT_ACCESS_KEY_ID

    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    os.environ[MARKER] = str(state.resolve())
    cloud = LocalCloud(state, region=region, port=port)
    cloud.start()
    write_cloud_file(
        state,
        CloudFile(
            endpoint_url=cloud.endpoint_url,
            region=region,
            account=cloud.clients.account,
            pid=os.getpid(),
            process_started_unix_seconds=psutil.Process().create_time(),
            access_key_id=ROOT_ACCESS_KEY_ID,
            secret_access_key=cloud.identity.root_secret,
        ),
    )
    stop.wait()
    logging.getLogger(__name__).info("closing")
    (state / "cloud.json").unlink(missing_ok=True)
    cloud.close()


def start(state: Path, *, region: str, port: int) -> CloudFile:
    """Start a cloud in the background and wait until it answers.

    Raises:
        StartFailed: It ended, or did not answer in START_SECONDS.
    """
    log = state / "cloud.log"
    arguments = [sys.executable, "-m", "localcloud", "up", "--foreground", "--state", str(state)]
    arguments += ["--region", region, "--port", str(port)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, MARKER: str(state.resolve())},
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        found = read_cloud_file(state)
        if found is not None and found.pid == process.pid:
            return found
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.kill()
    tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
    raise StartFailed(f"the local cloud did not come up (exit code {process.poll()}); the end of {log}:\n{tail}")
