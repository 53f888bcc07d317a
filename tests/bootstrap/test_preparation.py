from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path

import pytest

from bootstrap.documents import RunDocument
from bootstrap.plan import Context
from bootstrap.supervise import preparation
from bootstrap.supervise.preparation import Preparation
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


def test_code_and_dataset_are_fetched(account: Account, context: Context) -> None:
    account.put_dataset({"train-00000.bin": b"12"})
    run, wake = run_of(context), threading.Event()
    work = Preparation(context, wake)
    assert work.state(run.digest()) == "idle"
    work.start(run)
    assert wake.wait(DEADLINE_SECONDS)
    assert work.prepared_digest == run.digest()
    wait(lambda: work.state(run.digest()) == "idle")
    assert (context.layout.dataset("words") / "dataset.json").exists()


def test_a_dataset_that_comes_late_is_found(
    account: Account, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "FIRST_PAUSE_SECONDS", 0.05)
    work, run = Preparation(context, threading.Event()), run_of(context)
    work.start(run)
    wait(context.layout.events.exists)
    account.put_dataset({"train-00000.bin": b"12"})
    wait(lambda: work.prepared_digest == run.digest())
    first = json.loads(context.layout.events.read_text().splitlines()[0])
    assert (first["event"], first["run_digest"]) == ("run_preparation_failed", run.digest())
    assert "training tokenize" in first["message"]


def test_failing_for_good(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "FIRST_PAUSE_SECONDS", 0.001)
    wake, run = threading.Event(), run_of(context)
    work = Preparation(context, wake)
    work.start(run)
    wait(lambda: work.state(run.digest()) == "failed")
    assert "training.dataset: words" in work.message
    assert work.state("another") == "idle"
    assert len(context.layout.events.read_text().splitlines()) == preparation.TRIES


def test_another_document_ends_the_tries(context: Context) -> None:
    work, run = Preparation(context, threading.Event()), run_of(context)
    work.start(run)
    wait(context.layout.events.exists)
    work.follow(run.digest())
    assert work.state("another") == "running"
    work.follow("another")
    wait(lambda: work.state("another") == "idle")
