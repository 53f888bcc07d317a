"""A tiny dataset, and helpers that run the commands as processes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.localcloud.core.command_line import NO_MARK, ROOT
from tests.training.conftest import TINY, write_text


def command(
    *arguments: str, environment: dict[str, str] | None = None, largest_file_bytes: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m ...`; a file size limit simulates a full disk."""

    def limit() -> None:
        if largest_file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes, largest_file_bytes))

    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**NO_MARK, **(environment or {})},
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=60,
    )


def tokenize(source: Path, target: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m training tokenize`; options are `vocabulary_size`, `dtype`, and those of `command`."""
    arguments = ["--input", str(source), "--output", str(target), "--name", "tiny", "--workers", "1"]
    arguments += ["--validation-share", "0.2", "--vocabulary-size", str(options.pop("vocabulary_size", 300))]
    arguments += ["--dtype", options.pop("dtype", "auto")]
    return command("training", "tokenize", *arguments, **options)


@dataclass
class Ended:
    """The result of a trainer process."""

    exit_code: int
    outcome: dict[str, Any]
    records: list[str]


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    write_text(folder)
    return folder


@pytest.fixture(scope="session")
def dataset(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dataset")
    done = tokenize(text, target)
    assert done.returncode == 0, done.stderr
    return target / "tiny"


def train(dataset: Path, directory: Path, checkpoints: str, interval_steps: int = 5, **options: Any) -> Ended:
    """Train a tiny model in a separate process."""
    directory.mkdir(exist_ok=True)
    settings = {**TINY, "checkpoint": {"interval_steps": interval_steps}}
    (directory / "config.json").write_text(json.dumps(settings))
    arguments = ["--config", str(directory / "config.json"), "--dataset", str(dataset), "--checkpoints", checkpoints]
    done = command("training", "train", *arguments, "--run-directory", str(directory), **options)
    outcome = directory / "outcomes" / "rank-00000.json"
    assert outcome.exists(), done.stderr
    lines = (directory / "metrics.jsonl").read_text().splitlines(keepends=True)
    records = [json.loads(line)["record"] for line in lines if line.endswith("\n")]
    return Ended(done.returncode, json.loads(outcome.read_text()), records)
