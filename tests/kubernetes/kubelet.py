"""Runs pods as processes and ends them as a kubelet does: SIGTERM, then SIGKILL to all processes of the container.

Source (2026-11): https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bootstrap.kubernetes.pod import instance_id
from tests.bootstrap.waiting import wait_or_fail

REPOSITORY = Path(__file__).parent.parent.parent
POD_PROCESS = (sys.executable, "-m", "tests.kubernetes.pod_process")
DEADLINE_SECONDS = 120.0


def _stub_torch(directory: Path) -> Path:
    """Return a folder with an empty torch, whose import by a boot step takes seconds. The stand-in does not use it."""
    folder = directory / "stub"
    (folder / "torch").mkdir(parents=True, exist_ok=True)
    (folder / "torch" / "__init__.py").touch()
    return folder


class PodProcess:
    """A running pod."""

    def __init__(self, root: Path, index: int, address: str, command: Sequence[str], variables: Mapping[str, str]):
        self.uid, self.index, self.root = str(uuid.uuid4()), index, root
        root.mkdir(parents=True)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_EC2_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{_stub_torch(root.parent)}:{REPOSITORY}",
            "TRAINSTACK_ROOT": str(root),
            "TRAINSTACK_POD_NAME": f"pod-{index}",
            "TRAINSTACK_POD_UID": self.uid,
            "TRAINSTACK_POD_ADDRESS": address,
            "JOB_COMPLETION_INDEX": str(index),
            "AWS_EC2_METADATA_DISABLED": "true",
            **variables,
        }
        with (root / "console.log").open("ab") as console:
            self.process = subprocess.Popen(
                command, env=self.environment, cwd=root, stdout=console, stderr=subprocess.STDOUT
            )

    @property
    def instance_id(self) -> str:
        return instance_id(self.index, self.uid)

    @property
    def log(self) -> str:
        return (self.root / "console.log").read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        path = self.root / "events.jsonl"
        events = map(json.loads, path.read_text().splitlines() if path.exists() else [])
        return [event for event in events if event["event"] == name]

    def trainer(self, record: str) -> list[dict[str, Any]]:
        return [event["record"] for event in self.events("trainer") if event["record"]["record"] == record]

    def terminate(self) -> None:
        """Send SIGTERM to the container's first process, as the kubelet does at the start of the grace period."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to all processes of the container, as the runtime does at the end of the grace period."""
        self.process.kill()
        mark = f"TRAINSTACK_ROOT={self.root}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
        self.process.wait()


class Kubelet:
    """Starts pods, and kills them after the test."""

    def __init__(self, directory: Path, variables: Mapping[str, str]) -> None:
        self._directory, self._variables = directory, dict(variables)
        self.pods: list[PodProcess] = []

    def start(self, index: int, command: Sequence[str] = POD_PROCESS, **variables: str) -> PodProcess:
        number = len(self.pods) + 1
        pod = PodProcess(
            self._directory / f"pod-{number}", index, f"127.0.1.{number}", command, {**self._variables, **variables}
        )
        self.pods.append(pod)
        return pod

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        return wait_or_fail(
            condition,
            DEADLINE_SECONDS,
            what,
            lambda: "\n".join(f"== {pod.root}\n{pod.log[-6000:]}" for pod in self.pods),
        )
