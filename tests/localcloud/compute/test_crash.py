"""No process of an instance outlives the cloud, whether the cloud is killed or closed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from localcloud.state import MARKER, mark_of

CLOUD = """
import sys
from pathlib import Path
from localcloud.cloud import LocalCloud
cloud = LocalCloud(Path(sys.argv[1]), region="eu-west-1")
cloud.start()
lines = "(setsid sh -c 'setsid sleep 1000 & sleep 1000' &)", "sh -c 'trap : TERM; sleep 1000; sleep 1000' &", "echo up"
script = "\\n".join(["#!/bin/sh", *lines, ""])
ec2 = cloud.clients.client("ec2")
image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
ec2.run_instances(
    ImageId=image, InstanceType="m5.large", MinCount=2, MaxCount=2, UserData=script
)
sys.stdin.readline()
cloud.close()
"""
DEADLINE_SECONDS = 90.0


def of_state(state: Path, excluded: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARKER) == mark_of(state) and process.pid != excluded:
                found.append(process)
    return found


def until(condition, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.05)


@pytest.mark.parametrize("way", ["killed", "closed"])
def test_instances_end_with_the_cloud(tmp_path: Path, way: str) -> None:
    cloud = subprocess.Popen([sys.executable, "-c", CLOUD, str(tmp_path)], stdin=subprocess.PIPE)
    try:
        consoles = lambda: list(tmp_path.glob("instances/*/console.log"))  # noqa: E731
        until(lambda: sum("\nup\n" in path.read_text() for path in consoles()) == 2, "both user data scripts")
        until(lambda: len(of_state(tmp_path, cloud.pid)) >= 2 * 5, "every process of the instances to start")
        if way == "killed":
            os.kill(cloud.pid, signal.SIGKILL)
        else:
            assert cloud.stdin is not None
            cloud.stdin.write(b"\n")
            cloud.stdin.close()
        cloud.wait(DEADLINE_SECONDS)
        if way == "closed":
            assert cloud.returncode == 0
            assert of_state(tmp_path, cloud.pid) == []
        until(lambda: of_state(tmp_path, cloud.pid) == [], "every process of the instances to end")
    finally:
        cloud.kill()
        for process in of_state(tmp_path, cloud.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
