"""Bundles: equal bytes for equal sources, and their contents."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stacks.artifacts import bundles
from stacks.errors import BundleError


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sources that tests may change."""
    root = tmp_path / "tree"
    for name in ("bootstrap", "hardware", "stacks", "training"):
        shutil.copytree(bundles.ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(bundles, "ROOT", root)
    return root


def test_bundle_is_named_by_its_digest(tmp_path: Path) -> None:
    import hashlib

    bundle = bundles.node_bundle(tmp_path)
    assert hashlib.sha256(bundle.path.read_bytes()).hexdigest() == bundle.sha256 == bundle.path.stem


def test_times_modes_and_caches_do_not_change_the_digest(sources: Path, tmp_path: Path) -> None:
    before = bundles.code_bundle(tmp_path / "out")
    (sources / "training" / "__pycache__").mkdir()
    (sources / "training" / "__pycache__" / "config.cpython-311.pyc").write_bytes(b"x")
    (sources / "training" / "config.pyc").write_bytes(b"x")
    for path in sources.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    assert bundles.code_bundle(tmp_path / "out") == before


@pytest.mark.parametrize(
    "target",
    ["/proc/self/environ", "/etc/ssl", "../outside.txt", "../outside", "missing", "loop", "sub", ".git/config"],
)
def test_a_link_out_of_the_folder_is_refused_by_path(tmp_path: Path, target: str) -> None:
    """zipfile reads through links: https://docs.python.org/3/library/pathlib.html#pathlib.Path.is_file (2026-11)."""
    code = tmp_path / "code"
    (code / "sub").mkdir(parents=True)
    (code / ".git").mkdir()
    (code / ".git" / "config").write_text("token")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside.txt").write_text("secret")
    (code / "loop").symlink_to(target)
    with pytest.raises(BundleError, match=f"^{code}/loop: a symbolic link"):
        bundles.code_bundle(tmp_path / "out", code)
    assert not list((tmp_path / "out").glob("*.zip"))


def test_a_link_to_a_file_of_the_folder_is_shipped_as_a_file(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "model.py").write_text("x = 1\n")
    (code / "same.py").symlink_to("model.py")
    with zipfile.ZipFile(bundles.code_bundle(tmp_path / "out", code).path) as archive:
        assert archive.read("same.py") == b"x = 1\n"
        assert archive.getinfo("same.py").external_attr >> 16 == 0o644


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    os.mkfifo(code / "pipe")  # reading it would block forever
    with pytest.raises(BundleError, match="pipe: neither a file nor a folder"):
        bundles.code_bundle(tmp_path / "out", code)


def test_changed_source_changes_the_digest(sources: Path, tmp_path: Path) -> None:
    before = bundles.node_bundle(tmp_path / "out")
    (sources / "bootstrap" / "__init__.py").write_text("# changed\n")
    assert bundles.node_bundle(tmp_path / "out").sha256 != before.sha256
    assert before.path.exists()


def test_node_bundle_is_self_contained(tmp_path: Path) -> None:
    bundle = bundles.node_bundle(tmp_path)
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(bundle.path) as archive:
        archive.extractall(unpacked)
    done = subprocess.run(
        [sys.executable, "-m", "bootstrap", "plan"], cwd=unpacked, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "staging" in done.stdout


def test_code_bundle_has_trainer_and_user_code(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "pkg").mkdir(parents=True)
    (own / "pkg" / "train.py").write_text("")
    (own / ".git").mkdir()
    (own / ".git" / "config").write_text("")
    with zipfile.ZipFile(bundles.code_bundle(tmp_path / "out", own).path) as archive:
        names = set(archive.namelist())
    assert {"hardware/hardware.json", "training/__main__.py", "pkg/train.py"} <= names
    assert not any(".git" in name for name in names)


def test_user_code_must_not_hide_the_trainer(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "training").mkdir(parents=True)
    (own / "training" / "__main__.py").write_text("")
    (own / "hardware.py").write_text("")
    with pytest.raises(bundles.BundleError, match=r"hardware\.py, training/__main__\.py would replace or hide"):
        bundles.code_bundle(tmp_path / "out", own)


def test_function_bundle_has_its_package_at_the_root(tmp_path: Path) -> None:
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
