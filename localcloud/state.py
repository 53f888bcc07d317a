"""An embedded cloud's state directory: endpoint, processes and records."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from localcloud.tokens import control_token

MARKER = "LOCALCLOUD_MARK"
"""Environment variable that marks the processes of a cloud."""
KEPT_RECORDS = ("records.jsonl", "calls.jsonl", "cloud.log")


@dataclass(frozen=True)
class CloudFile:
    """Contents of `cloud.json`, which describes a running cloud."""

    endpoint_url: str
    region: str
    account: str
    pid: int
    process_started_unix_seconds: float
    access_key_id: str
    secret_access_key: str

    def environment(self, state: Path) -> dict[str, str]:
        """Return environment variables that point AWS tools at this cloud only."""
        empty = str(state.resolve() / "no-aws-config")
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_CONFIG_FILE": empty,
            "AWS_SHARED_CREDENTIALS_FILE": empty,
            "AWS_EC2_METADATA_DISABLED": "true",
            "CDK_DEFAULT_ACCOUNT": self.account,
            "CDK_DEFAULT_REGION": self.region,
        }

    @property
    def control_token(self) -> str:
        """The token for the control API."""
        return control_token(self.secret_access_key)

    def is_alive(self) -> bool:
        """Return True if the process that wrote the file is still running and its ID has not been reused."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.process_started_unix_seconds) < 1.0
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False


def mark_of(state: Path) -> str:
    """Return the mark of a cloud's processes, which does not disclose the state directory to instances."""
    return hashlib.sha256(str(state.resolve()).encode()).hexdigest()


def read_cloud_file(state: Path) -> CloudFile | None:
    """Return the contents of cloud.json, or None."""
    path = state / "cloud.json"
    try:
        return CloudFile(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None


def write_cloud_file(state: Path, cloud: CloudFile) -> None:
    """Write cloud.json atomically, readable only by its owner."""
    temporary = state / ".cloud.json"
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(asdict(cloud), indent=2) + "\n", encoding="utf-8")
    temporary.replace(state / "cloud.json")


def marked_processes(state: Path) -> list[psutil.Process]:
    """Return the processes that belong to the cloud in a state directory, except this process and its parents.

    The processes have the cloud's mark in their environment. A foreground cloud sets it too late for other processes
    to see, so cloud.json identifies that process.
    """
    wanted = mark_of(state)
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    cloud = read_cloud_file(state)
    writer = cloud.pid if cloud is not None and cloud.is_alive() else None
    found = []
    for process in psutil.process_iter():
        if process.pid in own:
            continue
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if process.pid == writer or process.environ().get(MARKER) == wanted:
                found.append(process)
    return found


def end_processes(state: Path, *, grace_seconds: float = 3.0, deadline_seconds: float = 20.0) -> int:
    """Terminate a cloud's processes, then kill those still running; return how many there were."""
    ended: set[int] = set()
    deadline = time.monotonic() + deadline_seconds
    terminate_until = time.monotonic() + grace_seconds
    while processes := marked_processes(state):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes did not exit: {[p.pid for p in processes]}")
        for process in processes:
            ended.add(process.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                if time.monotonic() < terminate_until:
                    process.terminate()
                else:
                    process.kill()
        psutil.wait_procs(processes, timeout=min(1.0, grace_seconds))
    return len(ended)


def archive_records(state: Path) -> None:
    """Move an earlier cloud's records to previous/."""
    previous = state / "previous"
    if not any((state / name).exists() for name in (*KEPT_RECORDS, "instances", "functions")):
        return
    if previous.exists():
        shutil.rmtree(previous)
    previous.mkdir()
    for entry in list(_entries(state)):
        entry.rename(previous / entry.name)


def _entries(state: Path) -> Iterator[Path]:
    return (entry for entry in state.iterdir() if entry.name != "previous")
