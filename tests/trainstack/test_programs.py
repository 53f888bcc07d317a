"""`weights`, `sample` and `evaluate`: the program that they execute."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bootstrap.documents import Prepare, RunDocument
from tests.trainstack.test_status import RUN
from trainstack import account
from trainstack.account import Deployment
from trainstack.commands import main

FOUND = Deployment("demo", "", "/trainstack/demo/run", "checkpoints", "control", "datasets")
STORE = "s3://checkpoints/runs/demo/first/checkpoints"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command on a deployment; return the arguments of `python -m training`, or the exit code."""
    started: list[list[str]] = []

    def call(*arguments: str, run: RunDocument = RUN) -> list[str] | int:
        for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
            monkeypatch.setenv(name, "eu-west-1")
        monkeypatch.setattr(account, "find", lambda client, name: replace(FOUND, name=name))
        monkeypatch.setattr(account, "run_document", lambda client, found, problems: run)
        monkeypatch.setattr(os, "execv", lambda program, words: started.append(words))
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        if not started:
            return int(ended.value.code or 0)
        words = started.pop()
        assert words[1:3] == ["-m", "training"]
        return words[3:]

    return call


def test_a_name_selects_the_store_and_the_dataset_of_the_run(call: Any) -> None:
    data = ["--dataset", f"s3://datasets/datasets/{RUN.dataset}"]
    assert call("weights", "demo", "-o", "out", "--step", "40") == [
        *("weights", f"{STORE}#40", *data, "--output", "out", "--layout", "hugging-face")
    ]
    assert call("evaluate", "demo", "--json") == ["evaluate", STORE, *data, "--json"]
    assert call("evaluate", "demo", "--region", "us-east-2", "--dataset", "d/e") == [
        "evaluate",
        STORE,
        "--dataset",
        "d/e",
    ]
    assert os.environ["AWS_REGION"] == os.environ["AWS_DEFAULT_REGION"] == "us-east-2"


def test_a_folder_needs_no_deployment(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = call("sample", "./model", "--prompt", "-a", "--top-k", "3", "--temperature", "0", "--seed", "2")
    assert words == [
        *("sample", "./model", "--prompt=-a", "--max-new-tokens", "100", "--temperature", "0.0", "--seed", "2"),
        *("--top-k", "3"),
    ]
    assert call("sample", "s3://b/p", "--prompt", "a", "--step", "4")[1] == "s3://b/p#4"


def test_mistakes(call: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("evaluate", "./model") == 2
    assert "no dataset" in capsys.readouterr().err
    assert call("sample", "./model#3", "--step", "4", "--prompt", "a") == 2
    assert "use one of them" in capsys.readouterr().err
    prepared = replace(RUN, prepare=Prepare("a:b", "raw/", {}, 10))
    assert call("evaluate", "demo", run=prepared) == 2
    assert "prepared by nodes" in capsys.readouterr().err
