"""Wheelhouse: resolution, lock, build and publication, from an index folder of tiny wheels."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from stacks.__main__ import main
from stacks.artifacts import wheelhouse
from stacks.artifacts.wheelhouse import wheels
from stacks.artifacts.wheelhouse.node_lock import PYTHONS, pinned_versions
from stacks.artifacts.wheelhouse.resolving import WheelhouseError, resolve
from stacks.artifacts.wheelhouse.wheels import Wheel
from stacks.changes.templates.revision import unpack
from stacks.errors import ConfigError
from stacks.loading import load
from tests.bootstrap.wheels import wheel

from .conftest import ROOT, Assembly, Synthesis

FILE = """
name: x
capacity: {instance_types: [g6.xlarge, g6.2xlarge]}
node: {python: {versions: ["3.13"]}}
training: {dataset: d, code: CODE}
"""
INDEX = (
    wheel("boto3", "1.44.8"),
    wheel("pip", "26.3"),
    wheel("torch", "2.12.0"),
    wheel("torch", "2.13.0", ["nvidia-cublas"]),
    wheel("torch", "2.14.0"),
    wheel("nvidia_cublas", "13.0"),
    wheel("numpy", "2.4.0"),
    wheel("timm", "1.0", ["torch>=2", "numpy", "pyyaml", "fancy[extra]", "old; python_version < '3.13'"]),
    wheel("fancy", "1.0", ["spark; extra == 'extra'", "boto3>=1"]),
    wheel("spark", "1.0"),
    wheel("pyyaml", "6.0.4"),
    wheel("old", "1.0"),
    wheel("backport", "1.0", ["new; python_version >= '3.13'"]),
    wheel("new", "1.0", ["newer; python_version >= '3.13'"]),
    wheel("newer", "1.0"),
    wheel("native", "1.0", tag="cp312-cp312-manylinux_2_28_x86_64"),
    wheel("arm", "1.0", tag="cp312-cp312-manylinux_2_28_aarch64"),
    wheel("recent", "1.0", tag="cp312-cp312-manylinux_2_39_x86_64"),
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only index that pip uses."""
    folder = tmp_path / "index"
    folder.mkdir()
    for file, body in INDEX:
        (folder / file).write_bytes(body)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def deployment(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment whose code has dependencies, in a project with two wheels for every node."""
    lock = tmp_path / "node.lock.json"
    monkeypatch.setattr(wheels, "NODE_LOCK", lock)
    of_every_node = {
        file.split("-")[0]: Wheel(file.split("-")[1], file, hashlib.sha256(body).hexdigest())
        for file, body in INDEX
        if file.startswith(("boto3-", "pip-"))
    }
    wheels.write_json(lock, wheels.to_json(dict.fromkeys(("3.12", "3.13"), of_every_node)))
    monkeypatch.chdir(tmp_path)
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("import timm, torch\n")
    file = tmp_path / "x.yaml"
    file.write_text(FILE.replace("CODE", code.name))
    return file


def built(folder: Path = wheelhouse.DIRECTORY) -> Path:
    (path,) = folder.glob("*.zip")
    return path


def locked(deployment: Path) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads(deployment.with_name(wheelhouse.LOCK_NAME).read_text())[deployment.name]
    return entry


def test_resolves_for_the_nodes_python_without_packages_of_the_image(index: Path) -> None:
    found = ["boto3", "fancy", "native", "old", "pyyaml", "spark", "timm"]
    assert list(resolve(["timm", "native"], "3.12", [])) == found
    mine = ["backport", "old; python_version < '3.12'", "spark; python_version >= '3.12'"]
    assert list(resolve(mine, "3.13", [])) == ["backport", "new", "newer", "spark"]


@pytest.mark.parametrize(
    ("requirement", "python"),
    [("native", "3.13"), ("arm", "3.12"), ("recent", "3.12")],
)
def test_reports_a_requirement_without_a_wheel(index: Path, requirement: str, python: str) -> None:
    with pytest.raises(WheelhouseError, match=f"Python {python}.*\n.*{requirement}"):
        resolve([requirement], python, [])


def test_rebuild_from_the_lock_is_identical(deployment: Path, index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", str(deployment)]) == 0
    first, lock = built(), locked(deployment)
    assert first.stem == lock["sha256"] == load(deployment).node.python.wheelhouse
    with zipfile.ZipFile(first) as archive:
        names = archive.namelist()
        assert "timm==1.0 --hash=sha256:" in archive.read("requirements-3.13.txt").decode()
    assert "wheels/boto3-1.44.8-py3-none-any.whl" in names
    assert not any("torch" in name or "numpy" in name or "nvidia" in name for name in names)
    (damaged,) = wheelhouse.DIRECTORY.glob("wheels/*/timm-*.whl")
    damaged.write_bytes(b"damaged")
    assert main(["bundle", str(deployment)]) == 0
    for file in index.iterdir():  # no more downloads from here on
        file.unlink()
    assert main(["bundle", str(deployment)]) == 0
    assert "unchanged" in capsys.readouterr().out
    first.unlink()
    assert main(["bundle", str(deployment), "--locked"]) == 0
    assert built() == first
    assert locked(deployment) == lock


def test_build_on_another_machine_is_identical_or_fails(
    deployment: Path, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bundle", str(deployment)]) == 0
    first = built().read_bytes()
    wheelhouse.DIRECTORY.rename("elsewhere")
    assert main(["bundle", str(deployment), "--locked"]) == 0
    assert built().read_bytes() == first
    wheelhouse.DIRECTORY.rename("elsewhere-too")
    (index / "pyyaml-6.0.4-py3-none-any.whl").write_bytes(wheel("pyyaml", "6.0.4", ["evil"])[1])
    assert main(["bundle", str(deployment), "--locked"]) == 1
    assert "DO NOT MATCH THE HASHES" in capsys.readouterr().err


def test_reports_an_outdated_lock(deployment: Path) -> None:
    assert main(["bundle", str(deployment)]) == 0
    before = load(deployment).node.python.wheelhouse
    code = deployment.parent / "code"
    for path, text in (
        (code / "train.py", "import timm, new\n"),
        (code / "requirements.txt", "timm==1.0\n"),
        (deployment, deployment.read_text().replace('"3.13"', '"3.12", "3.13"')),
    ):
        good = path.read_text() if path.exists() else ""
        path.write_text(text)
        with pytest.raises(ConfigError, match="is outdated.*python -m stacks bundle FILE"):
            load(deployment)
        path.write_text(good)
        assert load(deployment).node.python.wheelhouse == before
    (code / "train.py").write_text("import timm, new\n")
    assert main(["bundle", str(deployment)]) == 0
    assert load(deployment).node.python.wheelhouse != before


def test_torch_of_the_image_constrains_versions(deployment: Path, index: Path) -> None:
    (index / "timm-1.0-py3-none-any.whl").unlink()
    for file, body in (wheel("timm", "1.1", ["torch>=2.14"]), wheel("timm", "1.0", ["torch<2.14"])):
        (index / file).write_bytes(body)
    assert main(["bundle", str(deployment)]) == 0
    assert locked(deployment)["wheels"]["3.13"]["timm"]["version"] == "1.0"


def test_missing_and_invalid_lock(deployment: Path) -> None:
    assert load(deployment).node.python.wheelhouse == "auto"
    assert main(["bundle", str(deployment), "--locked"]) == 0
    assert not wheelhouse.DIRECTORY.exists()
    lock = deployment.with_name(wheelhouse.LOCK_NAME)
    for text in ("{", "[]", '{"x.yaml": {"inputs": 1}}', '{"x.yaml": []}'):
        lock.write_text(text)
        with pytest.raises(ConfigError, match="is not a valid wheel lock"):
            load(deployment)


def test_node_lock_has_the_pinned_versions() -> None:
    pinned = pinned_versions()
    assert set(wheels.node_wheels()) == set(PYTHONS)
    for python, of_one in wheels.node_wheels().items():
        assert set(wheels.NODE_PACKAGES) <= set(of_one), python
        wrong = {name: one.version for name, one in of_one.items() if pinned.get(name, one.version) != one.version}
        assert not wrong, f"Python {python}: python -m stacks.artifacts.wheelhouse.node_lock"
        assert not [name for name in of_one if wheels.is_of_image(name)]


class TestPublished:
    @pytest.fixture
    def archive(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr(wheelhouse, "DIRECTORY", tmp_path)
        sha256 = "c" * 64
        (tmp_path / f"{sha256}.zip").write_bytes(b"a wheelhouse")
        return sha256

    def test_node_bundle_has_key_and_digest_of_the_asset(
        self, synthesis: Synthesis, demo: Assembly, archive: str
    ) -> None:
        shipped = synthesis.variant(f"wheelhouse-{archive[0]}", {"node.python.wheelhouse": archive})
        assets = json.loads((shipped.directory / "TrainingStack.assets.json").read_text())["files"]
        keys = {
            destination["objectKey"]: asset["source"]["path"]
            for asset in assets.values()
            for destination in asset["destinations"].values()
        }
        named = [
            json.loads(bundle.read("wheelhouse.json"))
            for path in keys.values()
            if path.endswith(".zip") and zipfile.is_zipfile(shipped.directory / path)
            for bundle in [zipfile.ZipFile(shipped.directory / path)]
            if "wheelhouse.json" in bundle.namelist()
        ]
        (name,) = named
        assert name["sha256"] == archive
        assert (shipped.directory / keys[name["key"]]).read_bytes() == b"a wheelhouse"
        assert name["key"].endswith(".zip")  # the suffix that the node role may read
        templates = [one.one("TrainingStack", "AWS::EC2::LaunchTemplate") for one in (demo, shipped)]
        assert templates[0] != templates[1]

    def test_synthesis_rejects_a_missing_archive(self, synthesis: Synthesis, archive: str) -> None:
        with pytest.raises(ConfigError, match="not been built on this machine.*python -m stacks bundle FILE"):
            synthesis.variant("wheelhouse-absent", {"node.python.wheelhouse": "d" * 64})

    def test_templates_without_a_wheelhouse_are_unchanged(self, synthesis: Synthesis, demo: Assembly) -> None:
        off = synthesis.variant("wheelhouse-off", {"node.python.wheelhouse": "off"})
        assert off.text("TrainingStack") == demo.text("TrainingStack")


def test_warns_of_the_aws_image_without_wheels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(ROOT / "config" / "single-gpu.yaml")]) == 0
    assert "no wheels are locked" in capsys.readouterr().err
    assert main(["check", str(ROOT / "config" / "demo.yaml")]) == 0
    assert "no wheels are locked" not in capsys.readouterr().err


def test_an_older_revision_uses_local_archives(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("name: x\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for arguments in (["init", "-q"], ["add", "x.yaml"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *arguments], check=True)
    archive = tmp_path / wheelhouse.DIRECTORY / "a.zip"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"a wheelhouse")
    folder = tmp_path / "old"
    folder.mkdir()
    tree = unpack(tmp_path / "x.yaml", "HEAD", folder)
    assert (tree.root / wheelhouse.DIRECTORY / "a.zip").read_bytes() == b"a wheelhouse"
