"""Wrong input to the commands that a person types: all that is wrong, in words, and nothing begun."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flow.conftest import command, tokenize
from tests.localcloud.core.command_line import Cli

WRONG = """\
name: first
name: demo
nam: demo
capacity:
  instance_types: [c7i.2xlarge]
  nodes: 0
  market: [spot]
training:
  dataset: demo
  processes_per_node: two
  config: {stepz: 10}
"""
PROBLEMS = (
    "6 problems",
    "line 2: 'name': the key stands twice; keep one of the two",
    "nam: 'nam': unknown key; the keys here are account, budget, capacity,",
    "capacity.nodes: 0: input should be greater than or equal to 1; see docs/configuration.md",
    "capacity.market: ['spot']: input should be 'spot', 'on_demand', 'reserved', "
    "'capacity_block' or 'interruptible_reservation'; see docs/configuration.md",
    "training.processes_per_node: 'two': input should be a valid integer; see docs/configuration.md",
    "training.config.stepz: 'stepz': unknown key; the keys here are ",
)


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Path]:
    """The demo's build folder, looked through afterwards for what runs."""
    folder = tmp_path / "build"
    yield folder
    left = Cli(folder / "cloud").processes()
    for process in left:
        process.kill()
    assert left == []


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a failed command said, on one line."""
    assert done.returncode in (1, 2)
    output = done.stdout + done.stderr
    assert "Traceback" not in output
    return " ".join(output.replace("│", " ").split())


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "wrong.yaml"
    path.write_text(WRONG)
    return path


def test_check_tells_all_at_once(wrong: Path) -> None:
    words = said(command("stacks", "check", str(wrong)))
    assert [problem for problem in PROBLEMS if problem not in words] == []
    assert words.startswith(f"{wrong}: ")


def test_demo_tells_all_at_once_and_starts_no_cloud(wrong: Path, build: Path) -> None:
    words = said(command("localcloud.demo", "--config", str(wrong), "--build", str(build)))
    assert [problem for problem in PROBLEMS if problem not in words] == []
    assert files(build) == {"logs/check.log"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--fault", "wrong"), "wrong: one of notice, no-notice, none"),
        (("--data", "absent/folder"), "absent/folder: not a folder; give a folder of text files"),
        (("--build", __file__), "is a file"),
        (("--foult", "none"), "No such option: --foult"),
    ],
)
def test_demo_refuses_options(build: Path, options: tuple[str, ...], words: str) -> None:
    assert words in said(command("localcloud.demo", "--build", str(build), *options))
    assert not build.exists()


def test_demo_on_a_folder_without_text(build: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "image.png").write_bytes(bytes(range(256)))
    words = said(command("localcloud.demo", "--data", str(data), "--build", str(build), "--fault", "none"))
    assert f"{data}: holds no UTF-8 text files (1 other files); give a folder that does" in words
    assert "bootstrap" not in words
    assert not (build / "datasets").exists()
    assert not (build / "report.html").exists()
    assert not (build / "cloud" / "cloud.json").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"vocabulary_size": 70_000, "dtype": "uint16"},
            "--vocabulary-size: 70000 does not fit --dtype uint16, which ends at 65536; say uint32 or auto",
        ),
        ({"vocabulary_size": 100}, "--vocabulary-size: 100 is less than 257 (every byte, and the end of text)"),
        ({"vocabulary_size": 60_000}, "--vocabulary-size: 60000 is more than this text supports"),
        ({"vocabulary_size": "many"}, "argument --vocabulary-size: invalid int value: 'many'"),
    ],
)
def test_tokenize_refuses_vocabularies(text: Path, tmp_path: Path, options: dict[str, object], words: str) -> None:
    assert words in said(tokenize(text, tmp_path / "out", **options))
    assert files(tmp_path) == set()


def test_tokenize_refuses_folders_without_text(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert "data: holds no UTF-8 text files (0 other files)" in said(tokenize(tmp_path / "data", tmp_path / "out"))
    assert "absent: is not a folder; give one that holds" in said(tokenize(tmp_path / "absent", tmp_path / "out"))
    assert files(tmp_path) == set()
