"""A bounded part of `make fuzz`, and its detection of faults."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from training.errors import DatasetError

from . import __main__ as command
from .damage import damaged_json
from .readers import Reader

COUNTS = {"yaml": 60, "documents": 1500, "objects": 500, "metadata": 200, "control": 25, "templates": 20}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)


@pytest.mark.parametrize("kind", COUNTS)
def test_every_input_is_accepted_or_refused(kind: str) -> None:
    tally = command.fuzz(kind, COUNTS[kind], seed=2)
    assert not tally.failures, "\n".join(f"{content[:200]!r}: {text}" for content, text in tally.failures)
    assert tally.accepted + tally.refused == COUNTS[kind]
    # The supervisor's watch and the run controller set objects aside instead of raising an error. The review returns a
    # verdict.
    assert tally.refused or kind in ("control", "templates")


@pytest.mark.parametrize("fault", ["exception", "time", "message"])
def test_faults_are_counted(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(content: bytes) -> None:
        if content == b'{"a": 1}':
            return
        if fault == "exception":
            raise RecursionError
        if fault == "message":
            raise DatasetError([""])
        clock[0] += 6

    @contextmanager
    def readers() -> Iterator[list[Reader]]:
        yield [Reader((b'{"a": 1}',), damaged_json, read)]

    clock = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: clock[0])
    monkeypatch.setitem(command.KINDS, "faulty", command.Kind(10, readers))
    assert len(command.fuzz("faulty", 10, 1).failures) >= 9


def test_dangerous_changes_that_pass_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with command.KINDS["templates"].readers() as (reader,):
        names = reader.read.__globals__  # type: ignore[attr-defined]
    review = names["review"]
    monkeypatch.setitem(names, "review", lambda before, after: review(before, before))
    failures = command.fuzz("templates", 5, 1).failures
    assert len(failures) == 5
    assert all("AssertionError: passes" in text for _, text in failures)


def test_damage_differs_and_repeats() -> None:
    content = b'{"a": {"b": [1, 2, {"c": "d"}]}, "e": 1.5}'
    made = [[damaged_json(random, content) for _ in range(200)] for random in (Random(1), Random(1))]
    assert made[0] == made[1]
    assert len(set(made[0])) > 100
