"""The life-cycle script of HyperPod's nodes, run twice in a copy of its folder, and without a network."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bootstrap.slurm.hyperpod.checks import COMPUTE_STEPS
from bootstrap.slurm.hyperpod.settings import Settings
from stacks.artifacts.lifecycle import LifecycleFolder, lifecycle_folder
from stacks.loading import load

ROOT = Path(__file__).resolve().parents[2]
FI_INFO = "provider: efa\n    fabric: efa\n    domain: rdmap0s6-rdm\n    version: 1.22\n"
# The AWS CLI copies the report into a folder, or fails as it does without a route to S3.
TOOLS = {
    "aws": 'echo "$*" >>"$LOG"\n'
    'test -n "${OFFLINE:-}" && { echo "Could not connect to the endpoint URL" >&2; exit 255; }\n'
    'cp "${@: -2:1}" "$BUCKET/$(basename "${@: -1}")"',
    "fi_info": 'cat "$FI_INFO"',
    "nvidia-smi": 'cat "$GPUS"',
    "dmesg": ":",
}
Result = tuple[int, list[dict[str, Any]], str]


def gpus(count: int) -> str:
    """Return a report of nvidia-smi with healthy GPUs."""
    one = "<gpu id='{}'><uuid>GPU-{}</uuid><product_name>NVIDIA H100</product_name></gpu>"
    return "<nvidia_smi_log>" + "".join(one.format(index, index) for index in range(count)) + "</nvidia_smi_log>"


@pytest.fixture
def node(tmp_path: Path) -> Callable[..., Result]:
    """Return a function that runs a group's script on a machine with stand-ins for its tools."""
    folder = tmp_path / "lifecycle"
    made = lifecycle_folder(load(ROOT / "config" / "clusters" / "hyperpod.yaml"), tmp_path)
    shared = tmp_path / "fsx"
    shared.mkdir()
    settings = Settings("hyperpod", "us-east-1", "", 8, 1, str(shared / "run"))
    tools, bucket = tmp_path / "bin", tmp_path / "bucket"
    for each in (folder, tools, bucket):
        each.mkdir()
    for name, content in LifecycleFolder(made.digest, settings, made.bundle).files("control").items():
        (folder / name).write_bytes(content)
    for name, body in TOOLS.items():
        (tools / name).write_text(f"#!/bin/bash\n{body}\n")
        (tools / name).chmod(0o755)
    (tmp_path / "gpus.xml").write_text(gpus(8))
    (tmp_path / "fi_info.txt").write_text(FI_INFO)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "LOG": str(tmp_path / "aws.log"),
        "BUCKET": str(bucket),
        "GPUS": str(tmp_path / "gpus.xml"),
        "FI_INFO": str(tmp_path / "fi_info.txt"),
        "TRAINSTACK_STATE": str(tmp_path / "state"),
        "TRAINSTACK_WAIT_SECONDS": "0",
    }

    def run(group: str = "nodes", wrap: tuple[str, ...] = (), **variables: str) -> Result:
        command = [*wrap, "bash", str(folder / f"{group}.sh")]
        done = subprocess.run(command, env={**environment, **variables}, capture_output=True, text=True)
        steps = [json.loads(line) for line in done.stdout.splitlines()]
        return done.returncode, steps, done.stderr

    return run


def results(steps: list[dict[str, Any]]) -> dict[str, str]:
    return {step["step"]: step["result"] for step in steps}


def mounted(tmp_path: Path, *script: str) -> tuple[str, ...]:
    """Return a command prefix that mounts a file system as HyperPod does, in namespaces without a network."""
    lines = [f"mount -t tmpfs fsx {tmp_path / 'fsx'}", *script, 'exec "$@"']
    return ("unshare", "--net", "--mount", "bash", "-c", "; ".join(lines), "bash")


@pytest.mark.root
def test_script_runs_twice_without_a_network(node: Callable[..., Result], tmp_path: Path) -> None:
    keep = f"mkdir -p {tmp_path / 'fsx' / 'run'}; chmod 1777 {tmp_path / 'fsx' / 'run'}"
    code, steps, errors = node(wrap=mounted(tmp_path))
    assert (code, errors) == (0, "") and set(results(steps).values()) == {"passed"}
    report = json.loads(next((tmp_path / "bucket").iterdir()).read_text())
    assert report["group"] == "nodes" and results(report["steps"]) == results(steps)
    code, steps, errors = node(wrap=mounted(tmp_path, keep))
    assert (code, errors) == (0, "") and set(results(steps).values()) == {"passed before"}


@pytest.mark.root
def test_failure_is_reported_and_repaired_by_the_next_run(node: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "gpus.xml").write_text(gpus(7))
    code, steps, _ = node(wrap=mounted(tmp_path))
    assert code == 1 and results(steps) == {"gpus": "failed", "adapters": "passed", "shared_folder": "passed"}
    report = json.loads(next((tmp_path / "bucket").iterdir()).read_text())
    (failed,) = (step for step in report["steps"] if step["result"] == "failed")
    assert "7" in failed["message"] and failed["remedy"]
    (tmp_path / "gpus.xml").write_text(gpus(8))
    code, steps, _ = node(wrap=mounted(tmp_path))
    assert code == 0
    assert results(steps) == {"gpus": "passed", "adapters": "passed before", "shared_folder": "passed before"}


@pytest.mark.root
def test_node_trains_although_its_report_cannot_be_written(node: Callable[..., Result], tmp_path: Path) -> None:
    code, steps, errors = node(wrap=mounted(tmp_path), OFFLINE="1")
    assert code == 0 and set(results(steps).values()) == {"passed"}
    assert "cannot be written: Could not connect to the endpoint URL" in errors
    assert len((tmp_path / "aws.log").read_text().splitlines()) == 3
    assert results(json.loads((tmp_path / "state" / "report.json").read_text())["steps"]) == results(steps)


def test_missing_file_system_fails_the_node(node: Callable[..., Result], tmp_path: Path) -> None:
    code, steps, _ = node()
    (failed,) = (step for step in steps if step["result"] == "failed")
    if failed["step"] != "shared_folder":
        pytest.skip("the folder for temporary files is a file system of its own")
    assert code == 1 and "no file system is mounted there" in failed["message"]
    assert not (tmp_path / "fsx" / "run").exists()


def test_too_few_adapters_fail_the_node(node: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "fi_info.txt").write_text("")
    _, steps, _ = node()
    (adapters,) = (step for step in steps if step["step"] == "adapters")
    assert adapters["message"] == "found 0 EFA adapters (none), expected 1"


def test_other_nodes_check_only_the_file_system(node: Callable[..., Result]) -> None:
    for group in ("controller", "login"):
        _, steps, _ = node(group, GPUS="/dev/null")
        assert list(results(steps)) == ["shared_folder"]


def test_bad_settings_are_an_error(tmp_path: Path, node: Callable[..., Result]) -> None:
    settings = tmp_path / "lifecycle" / "settings.json"
    settings.write_text('{"deployment": "x"}')
    code, steps, errors = node()
    assert (code, steps) == (1, []) and "settings.json" in errors and "trainstack up" in errors
    settings.unlink()
    assert node()[0] == 1


def test_steps_are_documented() -> None:
    page = (ROOT / "docs" / "managed-clusters.md").read_text()
    for name, step in COMPUTE_STEPS.items():
        assert f"| `{name}` |" in page, step.__doc__
