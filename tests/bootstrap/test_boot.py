"""`python -m bootstrap boot` as a process: from the node document to a finished run, and reports of failures."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bootstrap.boot_steps.boot_sequence import STEPS
from tests.bootstrap.account import ROLE_ID, Account
from tests.bootstrap.metadata_server import MetadataServer

REPOSITORY = Path(__file__).parent.parent.parent
DEADLINE_SECONDS = 60.0


class Machine:
    """A root directory, a metadata service, and a `shutdown` on PATH that writes a file."""

    def __init__(self, root: Path, node: dict[str, Any] | str) -> None:
        self.root = root
        self.metadata = MetadataServer("i-0001", "127.0.0.21")
        (root / "node.json").write_text(node if isinstance(node, str) else json.dumps(node))
        programs = root / "bin"
        programs.mkdir()
        shutdown = programs / "shutdown"
        shutdown.write_text(f'#!/bin/sh\necho "$@" > {root}/shut-down\n')
        shutdown.chmod(shutdown.stat().st_mode | stat.S_IXUSR)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata.endpoint,
            "STANDIN_SHARED": str(root / "shared"),
        }

    def boot(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "bootstrap", "boot", "--root", str(self.root)],
            env=self.environment,
            cwd=self.root,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode, errors

    def events(self, name: str) -> list[dict[str, Any]]:
        path = self.root / "events.jsonl"
        events = map(json.loads, path.read_text().splitlines() if path.exists() else [])
        return [event for event in events if event["event"] == name]

    @property
    def was_shut_down(self) -> bool:
        path = self.root / "shut-down"
        return path.exists() and path.read_text() == "-h now\n"


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    made: list[Machine] = []
    yield made
    for machine in made:
        machine.metadata.close()


def make(machines: list[Machine], tmp_path: Path, node: dict[str, Any] | str) -> Machine:
    machines.append(Machine(tmp_path, node))
    return machines[-1]


def test_from_document_to_finished_run(
    account: Account, machines: list[Machine], tmp_path: Path, stand_in: str
) -> None:
    account.put_dataset({"train-00000.bin": b"\1\0" * 100})
    code = account.put_code({"training/__init__.py": "", "training/__main__.py": stand_in})
    account.put_run(account.run(code=code, nodes=1, min_nodes=1, processes_per_node=2))
    node = account.node(python={"interpreter": Path(sys.executable).name, "packages": ["torch", "boto3"]})
    machine = make(machines, tmp_path, node)
    process = machine.boot()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not machine.events("run_finished") and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    machine.metadata.notice(30)
    code_of_exit, errors = machine.end(process)
    assert (code_of_exit, machine.was_shut_down) == (0, True), errors
    steps = {event["step"]: event["outcome"] for event in machine.events("boot_step")}
    assert set(steps.values()) == {"done"} and len(steps) == len(STEPS)
    (started,) = machine.events("generation_started")
    assert started["world_size"] == 2
    assert account.control("outcome.json")["outcome"] == "finished"
    assert [event["record"]["step"] for event in machine.events("trainer")][-1] == 20
    assert (machine.events("boot_finished"), machine.events("node_leaving")) != ([], [])


def test_a_failing_step_is_reported_and_the_instance_shuts_down(
    account: Account, machines: list[Machine], tmp_path: Path
) -> None:
    code = account.put_code({"training/__init__.py": "", "training/__main__.py": ""})
    account.put_run(account.run(code=code))
    machine = make(machines, tmp_path, account.node(python={"interpreter": sys.executable, "packages": []}))
    exit_code, _ = machine.end(machine.boot())
    assert (exit_code, machine.was_shut_down) == (1, True)
    report = json.loads(
        account.s3.get_object(Bucket=account.records, Key=f"nodes/{ROLE_ID}:i-0001/boot-failure.json")["Body"].read()
    )
    assert (report["step"], report["instance_id"]) == ("staging", "i-0001")
    assert "training.dataset: words" in report["message"]
    assert "training tokenize" in report["remedy"]
    (failed,) = machine.events("boot_failed")
    assert failed["message"] == report["message"]
    stream = account.logs.get_log_events(logGroupName=account.log_group, logStreamName="i-0001")
    assert failed in [json.loads(each["message"]) for each in stream["events"]]  # a parallel step may end later


def test_without_a_metadata_service_the_boot_fails_within_seconds(
    account: Account, machines: list[Machine], tmp_path: Path
) -> None:
    machine = make(machines, tmp_path, account.node())
    machine.environment["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:1"
    exit_code, _ = machine.end(machine.boot())
    assert (exit_code, machine.was_shut_down) == (1, True)
    (failed,) = machine.events("boot_failed")
    assert failed["step"] in ("identity", "run_document")
    (started,) = machine.events("boot_started")
    assert failed["unix_seconds"] - started["unix_seconds"] < 10


@pytest.mark.parametrize("document", [None, "{", '{"schema_version": 2, "gpus": -1}'])
def test_without_a_valid_document_the_instance_shuts_down(
    machines: list[Machine], tmp_path: Path, document: str | None
) -> None:
    machine = make(machines, tmp_path, document or "")
    if document is None:
        (tmp_path / "node.json").unlink()
    exit_code, errors = machine.end(machine.boot())
    assert (exit_code, machine.was_shut_down) == (1, True)
    (failed,) = machine.events("boot_failed")
    assert failed["step"] == "node_document"
    assert "node.json" in failed["message"]


def test_plan_changes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bootstrap", "plan"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TRAINSTACK_ROOT": str(tmp_path / "root")}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("1. identity: ") and lines[-1].startswith(f"{len(STEPS)}. trainer_ready: ")
    assert list(tmp_path.iterdir()) == []


def test_plan_describes_what_a_boot_would_do(tmp_path: Path, account: Account) -> None:
    volume = {"kind": "dataset", "device": "/dev/sdf", "mount": "/mnt/dataset", "read_only": True, "warm": False}
    (tmp_path / "node.json").write_text(json.dumps(account.node(volumes=[volume])))
    command = [sys.executable, "-m", "bootstrap", "plan", "--root", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "   /mnt/dataset: dataset volume /dev/sdf of the launch template; read-only\n" in done.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "node.json"]
