"""Bundles: the same bytes for the same sources, and nothing in them that does not belong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stacks import bundles


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tree, to change at will."""
    root = tmp_path / "tree"
    for name in ("bootstrap", "training", "stacks"):
        shutil.copytree(bundles.ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(bundles, "ROOT", root)
    return root


def test_named_by_its_bytes(tmp_path: Path) -> None:
    import hashlib

    bundle = bundles.node_bundle(tmp_path)
    assert hashlib.sha256(bundle.path.read_bytes()).hexdigest() == bundle.sha256 == bundle.path.stem


def test_times_modes_and_byproducts_change_nothing(sources: Path, tmp_path: Path) -> None:
    before = bundles.code_bundle(tmp_path / "out")
    (sources / "training" / "__pycache__").mkdir()
    (sources / "training" / "__pycache__" / "config.cpython-311.pyc").write_bytes(b"x")
    for path in sources.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    assert bundles.code_bundle(tmp_path / "out") == before


def test_a_changed_source_is_another_bundle(sources: Path, tmp_path: Path) -> None:
    before = bundles.node_bundle(tmp_path / "out")
    (sources / "bootstrap" / "__init__.py").write_text("# changed\n")
    assert bundles.node_bundle(tmp_path / "out").sha256 != before.sha256
    assert before.path.exists()


def test_node_bundle_runs_on_its_own(tmp_path: Path) -> None:
    bundle = bundles.node_bundle(tmp_path)
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(bundle.path) as archive:
        archive.extractall(unpacked)
    done = subprocess.run(
        [sys.executable, "-m", "bootstrap", "plan"], cwd=unpacked, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "staging" in done.stdout


def test_code_bundle_holds_the_trainer_and_the_users_code(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "pkg").mkdir(parents=True)
    (own / "pkg" / "train.py").write_text("")
    (own / ".git").mkdir()
    (own / ".git" / "config").write_text("")
    with zipfile.ZipFile(bundles.code_bundle(tmp_path / "out", own).path) as archive:
        names = set(archive.namelist())
    assert {"training/__main__.py", "pkg/train.py"} <= names
    assert not any(".git" in name for name in names)


def test_users_code_may_not_hide_the_trainer(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "training").mkdir(parents=True)
    (own / "training" / "__main__.py").write_text("")
    with pytest.raises(bundles.BundleError, match="training/__main__.py"):
        bundles.code_bundle(tmp_path / "out", own)


def test_function_bundle_holds_its_package_at_the_root(tmp_path: Path) -> None:
    with zipfile.ZipFile(bundles.function_bundle("run_controller", tmp_path).path) as archive:
        assert "run_controller/handler.py" in archive.namelist()
        archive.extractall(tmp_path / "unpacked")
    done = subprocess.run(
        [sys.executable, "-c", "import run_controller.handler as h; print(h.handler.__name__)"],
        cwd=tmp_path / "unpacked",
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "handler\n", done.stderr
