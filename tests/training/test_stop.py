"""Stop requests below the loop: signals, stop files, the last save, and worker processes that ignore signals."""

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
from training.loop.interruption import TORCHRUN_GRACE_SECONDS, Interruption
from training.loop.last_save import SLOWDOWN_FACTOR, STEPS_TO_STOP, SaveTimes, choose_last_save
from training.process.children import STOP_SIGNALS
from training.script import ThisRun


@pytest.fixture
def interruption(tmp_path: Path) -> Iterator[Interruption]:
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    made = Interruption()
    made.watch(tmp_path)
    yield made
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: number.name)
def test_every_stop_signal_is_a_request(interruption: Interruption, number: signal.Signals) -> None:
    assert not interruption.wants_stop
    signal.raise_signal(number)
    assert interruption.wants_stop
    signal.raise_signal(signal.SIGINT)
    assert interruption.reason() == f"received {number.name}", "the first request counts"


def test_signal_before_construction_counts(tmp_path: Path) -> None:
    program = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getpid(), signal.SIGTERM)
from training.loop.interruption import Interruption
print(Interruption().reason())
"""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.stdout == "received SIGTERM\n", done.stderr


def test_torchruns_grace_period_is_an_expected_kill_but_no_deadline(
    interruption: Interruption, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    signal.raise_signal(signal.SIGTERM)
    assert interruption.seconds_to_expected_kill() is None, "not under torchrun"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert interruption.seconds_to_expected_kill() == TORCHRUN_GRACE_SECONDS
    assert interruption.seconds_to_deadline() is None, "a save is not cancelled for an estimate"
    monkeypatch.setattr(time, "time", lambda: 10.0)
    (tmp_path / "stop").write_text('{"deadline_unix_seconds": 12.5}')
    assert interruption.seconds_to_expected_kill() == interruption.seconds_to_deadline() == 2.5


@pytest.mark.parametrize("jump_seconds", [-3600.0, 3600.0])
def test_setting_the_clock_after_the_request_does_not_move_the_deadline(
    interruption: Interruption, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jump_seconds: float
) -> None:
    now, unix = time.monotonic(), time.time()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "time", lambda: unix)
    request_stop(tmp_path, 30)
    assert interruption.wants_stop
    monkeypatch.setattr(time, "time", lambda: unix + jump_seconds)
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    assert interruption.seconds_to_deadline() == interruption.seconds_to_expected_kill() == pytest.approx(20)


def request_stop(directory: Path, seconds_left: float, **more: object) -> None:
    written = directory / "stop.new"
    written.write_text(json.dumps({"deadline_unix_seconds": time.time() + seconds_left, **more}))
    written.replace(directory / "stop")


def test_notice_saves_immediately_and_trains_until_the_last_save_must_begin(
    interruption: Interruption, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interruption.last_save_seconds = 20.0
    request_stop(tmp_path, 110, train_on=True)
    assert interruption.wants_save and not interruption.wants_stop
    monkeypatch.setattr(time, "time", lambda: 0.0)  # setting the clock back has no effect
    interruption.save_taken()
    assert not interruption.wants_save and not interruption.wants_stop and not interruption.leaves_soon
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 71)
    assert interruption.leaves_soon and not interruption.wants_stop
    monkeypatch.setattr(time, "monotonic", lambda: now + 91)
    assert interruption.wants_stop and not interruption.wants_save
    interruption.last_save_seconds = 10.0  # the save at the notice took less time than the previous one
    assert not interruption.wants_stop
    monkeypatch.setattr(time, "monotonic", lambda: now + 101)
    assert interruption.wants_stop


@pytest.mark.parametrize(
    ("last_save_seconds", "seconds_left", "more"),
    [
        (None, 110, {"train_on": True}),  # no save was measured
        (60.0, 110, {"train_on": True}),  # not enough time for two saves
        (1.0, 300, {"train_on": False}),  # training on was not requested
        (1.0, 300, {}),
        (1.0, 300, {"train_on": "yes"}),
    ],
)
def test_stops_immediately_if_training_on_is_unsafe_or_not_requested(
    interruption: Interruption,
    tmp_path: Path,
    last_save_seconds: float | None,
    seconds_left: float,
    more: dict[str, object],
) -> None:
    interruption.last_save_seconds = last_save_seconds
    request_stop(tmp_path, seconds_left, **more)
    assert interruption.wants_stop and not interruption.wants_save


def test_signal_or_more_urgent_request_ends_training_on(interruption: Interruption, tmp_path: Path) -> None:
    interruption.last_save_seconds = 1.0
    request_stop(tmp_path, 110, train_on=True)
    assert not interruption.wants_stop
    request_stop(tmp_path, 60)
    assert interruption.wants_stop
    request_stop(tmp_path, 60, train_on=True)
    assert not interruption.wants_stop
    signal.raise_signal(signal.SIGTERM)
    assert interruption.wants_stop


def test_no_save_begins_shortly_before_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves_soon = False
    monkeypatch.setattr(Interruption, "leaves_soon", property(lambda self: leaves_soon))
    with loop_of(tmp_path, checkpoint={"interval_steps": 1}) as loop:
        for _ in range(3):
            loop.advance()
        loop.run.writer.wait()
        assert loop.run.writer.last_started_step
        leaves_soon = True
        loop.advance()  # its flag arrives one step later
        loop.run.writer.wait()
        begun = loop.run.writer.last_started_step
        for _ in range(3):
            loop.advance()
        assert loop.run.writer.last_started_step == begun


def test_script_measures_saves_and_saves_a_checkpoint_of_the_local_tier(
    interruption: Interruption, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    state = SimpleNamespace(is_saving=False, is_local_only=True, agree=lambda flags: flags)
    state.save = lambda step, extra, rank_extra: saved.append(step) or True
    run = ThisRun(tmp_path, "checkpoints", tmp_path, 1, interruption)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    run.handle_requests(state, 1)  # type: ignore[arg-type]
    assert saved == [1], "it resumed from the local tier"
    state.is_local_only, state.is_saving = False, True
    for _ in range(4):
        now += 2.0
        run.handle_requests(state, 2)  # type: ignore[arg-type]
    state.is_saving, now = False, now + 2.0
    run.handle_requests(state, 3)  # type: ignore[arg-type]
    assert interruption.last_save_seconds == 10.0 * SLOWDOWN_FACTOR + 2.0 * STEPS_TO_STOP
    request_stop(tmp_path, 110, train_on=True)
    run.handle_requests(state, 4)  # type: ignore[arg-type]
    assert saved == [1, 4], "saves at the notice, and continues"


@pytest.mark.parametrize(
    ("usual", "in_flight", "remaining", "expected"),
    [
        (10.0, 8.0, None, "current step"),  # no deadline
        (10.0, 8.0, 60.0, "current step"),
        (10.0, 8.0, 10.0, "in flight"),  # a new save takes 15 s, the one in flight 7 s more
        (10.0, 2.0, 10.0, "current step"),  # neither fits: try the current step
        (10.0, None, 10.0, "current step"),  # no save is in flight
        (None, 8.0, 10.0, "current step"),  # no save was measured
    ],
)
def test_last_save(usual: float | None, in_flight: float | None, remaining: float | None, expected: str) -> None:
    assert choose_last_save(SaveTimes(usual, in_flight, remaining)) == expected


def test_data_loader_workers_survive_a_signal_to_the_process_group() -> None:
    program = """
import os, signal, sys
from torch.utils.data import DataLoader
from training.loop.interruption import Interruption
from training.process.children import ignore_stop_signals
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
