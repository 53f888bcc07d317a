"""Runs the embedded cloud as a background process."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import psutil

from localcloud.account.account_file import AccountDescription
from localcloud.state import MARKER, CloudFile, mark_of, read_cloud_file, write_cloud_file

REPORT_SECONDS = 10.0


class StartFailed(Exception):
    """The cloud did not start. The message contains the end of its log."""


def serve(
    state: Path, *, region: str, port: int, account: AccountDescription | None = None, check_models: bool = False
) -> None:
    """Run a cloud in this process until SIGTERM or SIGINT."""
    from localcloud.cloud import LocalCloud
    from localcloud.iam.identity import ROOT_ACCESS_KEY_ID

    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    os.environ[MARKER] = mark_of(state)
    cloud = LocalCloud(state, region=region, port=port, account=account, check_models=check_models)
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


def start(
    state: Path,
    *,
    region: str,
    port: int,
    account: Path | None = None,
    check_models: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> CloudFile:
    """Start a cloud in the background and wait until it is ready, as long as its process is alive.

    Args:
        progress: Receives a line every REPORT_SECONDS.

    Raises:
        StartFailed: The process exited.
    """
    log = state / "cloud.log"
    arguments = [sys.executable, "-m", "localcloud", "up", "--foreground", "--state", str(state)]
    arguments += ["--region", region, "--port", str(port), *(["--check-models"] if check_models else [])]
    if account is not None:
        arguments += ["--account", str(account)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, MARKER: mark_of(state)},
            start_new_session=True,
        )
    began = reported = time.monotonic()
    try:
        while process.poll() is None:
            found = read_cloud_file(state)
            if found is not None and found.pid == process.pid:
                return found
            if time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                progress(f"waiting for process {process.pid}, {reported - began:.0f} s so far; log: {log}")
            time.sleep(0.05)
    except BaseException:  # on Ctrl-C, do not leave the process running
        process.kill()
        raise
    tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
    raise StartFailed(f"the embedded cloud did not start (exit code {process.poll()}); end of {log}:\n{tail}")
