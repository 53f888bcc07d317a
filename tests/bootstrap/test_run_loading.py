from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path

import pytest

from bootstrap.context import Context
from bootstrap.documents import RunDocument
from bootstrap.supervise import run_loading
from bootstrap.supervise.run_loading import RunLoader
from tests.bootstrap import waiting
from tests.bootstrap.account import Account
from tests.bootstrap.test_steps import real

DEADLINE_SECONDS = 60.0


@pytest.fixture
def context(account: Account, tmp_path: Path) -> Context:
    code = account.put_code({"training/__init__.py": "", "training/__main__.py": ""})
    return real(account, tmp_path, code=code)


wait = partial(waiting.wait, limit_seconds=DEADLINE_SECONDS)


def run_of(context: Context) -> RunDocument:
    assert context.run is not None
    return context.run


def test_code_and_dataset_are_loaded(account: Account, context: Context) -> None:
    account.put_dataset({"train-00000.bin": b"12"})
    run, wake = run_of(context), threading.Event()
    loader = RunLoader(context, wake)
    assert loader.state(run.digest()) == "idle"
    loader.start(run)
    assert wake.wait(DEADLINE_SECONDS)
    assert loader.loaded_digest == run.digest()
    wait(lambda: loader.state(run.digest()) == "idle")
    assert (context.layout.dataset("words") / "dataset.json").exists()


def test_loading_retries_until_the_dataset_exists(
    account: Account, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_loading, "INITIAL_PAUSE_SECONDS", 0.05)
    loader, run = RunLoader(context, threading.Event()), run_of(context)
    loader.start(run)
    wait(context.layout.events.exists)
    account.put_dataset({"train-00000.bin": b"12"})
    wait(lambda: loader.loaded_digest == run.digest())
    first = json.loads(context.layout.events.read_text().splitlines()[0])
    assert (first["event"], first["run_digest"]) == ("run_loading_failed", run.digest())
    assert "training tokenize" in first["message"]


def test_loading_fails_after_the_last_try(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_loading, "INITIAL_PAUSE_SECONDS", 0.001)
    wake, run = threading.Event(), run_of(context)
    loader = RunLoader(context, wake)
    loader.start(run)
    wait(lambda: loader.state(run.digest()) == "failed")
    assert "training.dataset: words" in loader.message
    assert loader.state("another") == "idle"
    assert len(context.layout.events.read_text().splitlines()) == run_loading.TRIES


def test_another_run_document_cancels_the_retries(context: Context) -> None:
    loader, run = RunLoader(context, threading.Event()), run_of(context)
    loader.start(run)
    wait(context.layout.events.exists)
    loader.follow(run.digest())
    assert loader.state("another") == "running"
    loader.follow("another")
    wait(lambda: loader.state("another") == "idle")
