"""Invalid input to the commands: all problems are reported, and nothing is started."""

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
    "line 2: 'name': repeated key; keep one of the two",
    "nam: 'nam': unknown key; known keys: account, budget, capacity,",
    "capacity.nodes: 0: input should be greater than or equal to 1; see docs/configuration.md",
    "capacity.market: ['spot']: input should be 'spot', 'on_demand', 'reserved', "
    "'capacity_block' or 'interruptible_reservation'; see docs/configuration.md",
    "training.processes_per_node: 'two': input should be a valid integer; see docs/configuration.md",
    "training.config.stepz: 'stepz': unknown key; known keys: ",
)


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Path]:
    """The demo's build folder; no process of its cloud may be left."""
    folder = tmp_path / "build"
    yield folder
    left = Cli(folder / "cloud").processes()
    for process in left:
        process.kill()
    assert left == []


def printed(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a failed command as one line."""
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


def test_check_reports_all_problems(wrong: Path) -> None:
    output = printed(command("stacks", "check", str(wrong)))
    assert [problem for problem in PROBLEMS if problem not in output] == []
    assert output.startswith(f"{wrong}: ")


def test_demo_reports_all_problems_and_starts_no_cloud(wrong: Path, build: Path) -> None:
    output = printed(command("localcloud.demo", "--config", str(wrong), "--build", str(build)))
    assert [problem for problem in PROBLEMS if problem not in output] == []
    assert files(build) == {"logs/check.log"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--fault", "wrong"), "wrong: must be one of notice, no-notice, none"),
        (("--data", "absent/folder"), "absent/folder: not a folder; use a folder of text files"),
        (("--build", __file__), "is a file"),
        (("--foult", "none"), "No such option: --foult"),
    ],
)
def test_demo_refuses_invalid_options(build: Path, options: tuple[str, ...], text: str) -> None:
    assert text in printed(command("localcloud.demo", "--build", str(build), *options))
    assert not build.exists()


def test_demo_on_a_folder_without_text(build: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "image.png").write_bytes(bytes(range(256)))
    output = printed(command("localcloud.demo", "--data", str(data), "--build", str(build), "--fault", "none"))
    assert f"{data}: no text files (skipped: binary: 1); specify a folder of text files" in output
    assert "bootstrap" not in output
    assert not (build / "datasets").exists()
    assert not (build / "report.html").exists()
    assert not (build / "cloud" / "cloud.json").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"vocabulary_size": 70_000, "dtype": "uint16"},
            "--vocabulary-size: 70000: does not fit --dtype uint16 (at most 65536); use uint32 or auto",
        ),
        ({"vocabulary_size": 100}, "--vocabulary-size: 100: must be at least 257 (all bytes, and end of text)"),
        ({"vocabulary_size": 60_000}, "--vocabulary-size: 60000: this text supports at most "),
        ({"vocabulary_size": "many"}, "argument --vocabulary-size: invalid int value: 'many'"),
    ],
)
def test_tokenize_refuses_vocabularies(text: Path, tmp_path: Path, options: dict[str, object], expected: str) -> None:
    assert expected in printed(tokenize(text, tmp_path / "out", **options))
    assert files(tmp_path) == set()


def test_tokenize_refuses_folders_without_text(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert "data: no text files (skipped: none)" in printed(tokenize(tmp_path / "data", tmp_path / "out"))
    assert "absent: not a folder; specify a folder" in printed(tokenize(tmp_path / "absent", tmp_path / "out"))
    assert files(tmp_path) == set()
