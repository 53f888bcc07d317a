"""The stop protocol below the loop: signals, what is still worth saving, processes that must not stop by themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.training.test_recovery import loop_of
from training.interruption import STOP_SIGNALS, TORCHRUN_GRACE_SECONDS, Interruption
from training.script import ThisRun
from training.stopping import SLOWER_THAN_BEFORE, STEPS_TO_STOP, SaveTimes, choose_last_save


@pytest.fixture
def interruption(tmp_path: Path) -> Iterator[Interruption]:
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    made = Interruption()
    made.watch(tmp_path)
    yield made
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: number.name)
def test_every_signal_that_means_stop_is_a_request(interruption: Interruption, number: signal.Signals) -> None:
    assert not interruption.wants_stop
    signal.raise_signal(number)
    assert interruption.wants_stop
    signal.raise_signal(signal.SIGINT)
    assert interruption.reason() == f"received {number.name}", "the first request counts"


def test_a_signal_that_came_before_anybody_could_hear_it_counts(tmp_path: Path) -> None:
    program = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getpid(), signal.SIGTERM)
from training.interruption import Interruption
print(Interruption().reason())
"""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.stdout == "received SIGTERM\n", done.stderr


def test_torchruns_patience_is_a_time_to_reckon_with_but_no_deadline(
    interruption: Interruption, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    signal.raise_signal(signal.SIGTERM)
    assert interruption.seconds_to_expected_kill() is None, "alone, nobody kills"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert interruption.seconds_to_expected_kill() == TORCHRUN_GRACE_SECONDS
    assert interruption.seconds_to_deadline() is None, "a save is not given up for a guess"
    monkeypatch.setattr(time, "time", lambda: 10.0)
    (tmp_path / "stop").write_text('{"deadline_unix_seconds": 12.5}')
    assert interruption.seconds_to_expected_kill() == interruption.seconds_to_deadline() == 2.5


@pytest.mark.parametrize("jump_seconds", [-3600.0, 3600.0])
def test_a_clock_that_is_set_after_the_request_moves_no_deadline(
    interruption: Interruption, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jump_seconds: float
) -> None:
    now, unix = time.monotonic(), time.time()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "time", lambda: unix)
    ask_to_stop(tmp_path, 30)
    assert interruption.wants_stop
    monkeypatch.setattr(time, "time", lambda: unix + jump_seconds)
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    assert interruption.seconds_to_deadline() == interruption.seconds_to_expected_kill() == pytest.approx(20)


def ask_to_stop(directory: Path, seconds_left: float, **more: object) -> None:
    written = directory / "stop.new"
    written.write_text(json.dumps({"deadline_unix_seconds": time.time() + seconds_left, **more}))
    written.replace(directory / "stop")


def test_at_a_notice_it_saves_at_once_and_trains_on_until_the_last_save_must_begin(
    interruption: Interruption, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interruption.last_save_seconds = 20.0
    ask_to_stop(tmp_path, 110, train_on=True)
    assert interruption.wants_save and not interruption.wants_stop
    monkeypatch.setattr(time, "time", lambda: 0.0)  # a clock that is set back moves nothing
    interruption.save_taken()
    assert not interruption.wants_save and not interruption.wants_stop and not interruption.leaves_soon
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 71)
    assert interruption.leaves_soon and not interruption.wants_stop
    monkeypatch.setattr(time, "monotonic", lambda: now + 91)
    assert interruption.wants_stop and not interruption.wants_save
    interruption.last_save_seconds = 10.0  # the save at the notice took less than the one before
    assert not interruption.wants_stop
    monkeypatch.setattr(time, "monotonic", lambda: now + 101)
    assert interruption.wants_stop


@pytest.mark.parametrize(
    ("last_save_seconds", "seconds_left", "more"),
    [
        (None, 110, {"train_on": True}),  # how long a save takes is not known
        (60.0, 110, {"train_on": True}),  # no time for two
        (1.0, 300, {"train_on": False}),  # somebody waits for it
        (1.0, 300, {}),
        (1.0, 300, {"train_on": "yes"}),
    ],
)
def test_it_stops_at_once_where_training_on_is_not_safe_or_not_wanted(
    interruption: Interruption,
    tmp_path: Path,
    last_save_seconds: float | None,
    seconds_left: float,
    more: dict[str, object],
) -> None:
    interruption.last_save_seconds = last_save_seconds
    ask_to_stop(tmp_path, seconds_left, **more)
    assert interruption.wants_stop and not interruption.wants_save


def test_a_signal_or_a_more_urgent_request_ends_the_training_on(interruption: Interruption, tmp_path: Path) -> None:
    interruption.last_save_seconds = 1.0
    ask_to_stop(tmp_path, 110, train_on=True)
    assert not interruption.wants_stop
    ask_to_stop(tmp_path, 60)
    assert interruption.wants_stop
    ask_to_stop(tmp_path, 60, train_on=True)
    assert not interruption.wants_stop
    signal.raise_signal(signal.SIGTERM)
    assert interruption.wants_stop


def test_no_save_begins_that_the_last_one_would_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves_soon = False
    monkeypatch.setattr(Interruption, "leaves_soon", property(lambda self: leaves_soon))
    with loop_of(tmp_path, checkpoint={"interval_steps": 1}) as loop:
        for _ in range(3):
            loop.advance()
        loop.run.writer.wait()
        assert loop.run.writer.last_started_step
        leaves_soon = True
        loop.advance()  # its vote is heard a step later
        loop.run.writer.wait()
        begun = loop.run.writer.last_started_step
        for _ in range(3):
            loop.advance()
        assert loop.run.writer.last_started_step == begun


def test_script_measures_its_saves_and_saves_what_is_near_only(
    interruption: Interruption, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    state = SimpleNamespace(is_saving=False, is_near_only=True, agree=lambda votes: votes)
    state.save = lambda step, extra: saved.append(step) or True
    run = ThisRun(tmp_path, "checkpoints", tmp_path, 1, interruption)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    run.heed(state, 1)  # type: ignore[arg-type]
    assert saved == [1], "only this gang's nodes have what it resumed from"
    state.is_near_only, state.is_saving = False, True
    for _ in range(4):
        now += 2.0
        run.heed(state, 2)  # type: ignore[arg-type]
    state.is_saving, now = False, now + 2.0
    run.heed(state, 3)  # type: ignore[arg-type]
    assert interruption.last_save_seconds == 10.0 * SLOWER_THAN_BEFORE + 2.0 * STEPS_TO_STOP
    ask_to_stop(tmp_path, 110, train_on=True)
    run.heed(state, 4)  # type: ignore[arg-type]
    assert saved == [1, 4], "at the notice, and goes on"


@pytest.mark.parametrize(
    ("usual", "under_way", "left", "expected"),
    [
        (10.0, 8.0, None, "this step"),  # there is time
        (10.0, 8.0, 60.0, "this step"),
        (10.0, 8.0, 10.0, "under way"),  # 15 s are needed for a new one, 7 s for the one under way
        (10.0, 2.0, 10.0, "this step"),  # neither will do: try for all
        (10.0, None, 10.0, "this step"),  # nothing is under way
        (None, 8.0, 10.0, "this step"),  # nothing is known
    ],
)
def test_last_save(usual: float | None, under_way: float | None, left: float | None, expected: str) -> None:
    assert choose_last_save(SaveTimes(usual, under_way, left)) == expected


def test_workers_of_a_data_loader_outlive_a_signal_to_the_group() -> None:
    program = """
import os, signal, sys
from torch.utils.data import DataLoader
from training.interruption import Interruption, ignore_stop_signals
interruption = Interruption()
batches = iter(DataLoader(range(64), batch_size=1, num_workers=1, worker_init_fn=ignore_stop_signals))
next(batches)
os.killpg(0, signal.SIGTERM)
print(1 + sum(1 for _ in batches), interruption.wants_stop)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.split() == ["64", "True"], done.stderr
