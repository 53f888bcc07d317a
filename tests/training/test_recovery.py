"""Losses that go wrong: skipped, gone back from, named; and runs that have learned what they can."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from training.ballot import StepReport
from training.bench.turns import open_loop
from training.config import TrainingConfig
from training.errors import DivergedError, NonFiniteLossError
from training.faults import require_same_parameters, where_it_began
from training.loss_watch import FIRST_STEPS, LossWatch
from training.memory import explain_out_of_memory, is_out_of_memory
from training.recovery_settings import RecoveryConfig
from training.trainer import Loop

SMALL = {
    "steps": 1000,
    "global_batch_sequences": 4,
    "micro_batch_sequences": 2,
    "model": {"layers": 2, "heads": 2, "embedding": 32, "context": 16},
    "schedule": {"kind": "constant", "warmup_steps": 1},
    "threads": 1,
}


@contextmanager
def signals_kept() -> Iterator[None]:
    """Undo what a trainer does to the process's signals."""
    handlers = {number: signal.getsignal(number) for number in range(1, 32) if number not in (9, 19)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)


@contextmanager
def loop_of(folder: Path, **changes: Any) -> Iterator[Loop]:
    with signals_kept(), open_loop(TrainingConfig.model_validate(SMALL | changes), 64, folder) as loop:
        yield loop


def report(step: int, loss: float, skipped: bool = False) -> StepReport:
    return StepReport(step, loss, 1e-3, 1.0, 0.1, skipped=skipped)


def test_spike_is_what_lies_far_above_the_running_mean_several_times_in_a_row() -> None:
    watch = LossWatch(RecoveryConfig(spike_deviations=6.0, spike_steps=2))
    for step in range(FIRST_STEPS + 20):
        assert not watch.note(report(step, 3.0 + 0.1 * (-1) ** step))
    assert not watch.note(report(100, 3.5))
    assert not watch.note(report(101, 9.0)) and watch.spikes_in_a_row == 1
    assert not watch.note(report(102, 3.0)) and watch.spikes_in_a_row == 0
    assert not watch.note(report(103, 9.0))
    again = LossWatch(RecoveryConfig(spike_deviations=6.0, spike_steps=1), watch.state())
    assert again.note(report(104, 9.0)), "a resumed run knows the mean"
    assert watch.note(report(104, 9.0))


def test_run_goes_back_from_a_spike_and_leaves_out_its_data(tmp_path: Path) -> None:
    recovery = {"spike_deviations": 8.0, "spike_steps": 2, "most_roll_backs": 1}
    with loop_of(tmp_path, recovery=recovery, checkpoint={"interval_steps": 20}) as loop:
        run = loop.run
        train_to(loop, FIRST_STEPS + 20)
        run.patience.note(run.state.step, 0.1)
        sound = {name: tensor.clone() for name, tensor in run.state.tensors().items()}
        before = spoil(loop)
        while run.state.step >= before:
            loop.advance()
        went_back_to = run.state.step
        assert went_back_to % 20 == 0 and run.watch.roll_backs == 1
        assert run.state.position > before * 4, "the batches of the spike are not seen again"
        assert run.state.tensors().keys() == sound.keys()
        assert run.validation is None and run.patience.state()["best"] is None, "measured after the checkpoint"
        assert run.model.final_norm.weight.abs().max() < 10
        for _ in range(3):
            loop.advance()
        assert run.watch.spikes_in_a_row == 0
        assert (run.state.step, run.manifest().extra["watch"]["roll_backs"]) == (went_back_to + 3, 1)
        spoil(loop)
        with pytest.raises(DivergedError, match="went back 1 times already"):
            for _ in range(FIRST_STEPS):
                loop.advance()


def spoil(loop: Loop) -> int:
    """Spoil the weights; return the step that they are of."""
    with torch.no_grad():
        loop.run.model.final_norm.weight.mul_(100.0)
    return loop.run.state.step


def train_to(loop: Loop, step: int) -> None:
    """Take steps up to one, each save through before the next step: none waits until weights are spoilt."""
    while loop.run.state.step < step:
        loop.advance()
        loop.run.writer.wait()


def advance_until_it_goes_back(loop: Loop) -> int:
    """Take steps until the run goes back; return the step that it goes back to."""
    before = loop.run.state.step
    for _ in range(10):
        loop.advance()
        if loop.run.state.step <= before:
            return loop.run.state.step
    raise AssertionError(f"still going on at step {loop.run.state.step}")


GOES_BACK = {"spike_deviations": 8.0, "spike_steps": 2, "most_roll_backs": 1}


def test_no_save_that_waited_is_begun_while_the_loss_is_in_doubt(tmp_path: Path, monkeypatch: Any) -> None:
    with loop_of(tmp_path, recovery=GOES_BACK, checkpoint={"interval_steps": 20}) as loop:
        train_to(loop, FIRST_STEPS + 5)
        with monkeypatch.context() as held_up:
            held_up.setattr(type(loop.run.writer), "is_busy", property(lambda writer: True))
            while loop.run.state.step < FIRST_STEPS + 20:
                loop.advance()
        spoil(loop)
        assert advance_until_it_goes_back(loop) == 40
        train_to(loop, 41)
        assert loop.run.watch.roll_backs == 1 and loop.run.model.final_norm.weight.abs().max() < 10


def test_save_that_waited_is_begun_once_a_spike_is_over(tmp_path: Path, monkeypatch: Any) -> None:
    with loop_of(tmp_path, recovery=GOES_BACK | {"spike_steps": 5}, checkpoint={"interval_steps": 20}) as loop:
        train_to(loop, FIRST_STEPS + 9)
        spoil(loop)
        loop.advance()
        assert loop.run.state.step == FIRST_STEPS + 10
        loop.advance()
        assert loop.run.watch.doubtful_since == FIRST_STEPS + 10
        with torch.no_grad():
            loop.run.model.final_norm.weight.div_(100.0)
        train_to(loop, FIRST_STEPS + 15)
        assert loop.run.watch.doubtful_since is None
        assert FIRST_STEPS + 10 < loop.run.writer.committed_step < FIRST_STEPS + 15


def test_checkpoint_of_the_step_that_spoilt_the_weights_is_gone_back_past(tmp_path: Path) -> None:
    with loop_of(tmp_path, recovery=GOES_BACK, checkpoint={"interval_steps": 20}) as loop:
        train_to(loop, 59)
        spoil(loop)  # seen in the loss of step 60, whose weights are saved no more
        assert advance_until_it_goes_back(loop) == 40
    with loop_of(tmp_path / "alone", recovery=GOES_BACK, checkpoint={"interval_steps": 60}) as loop:
        train_to(loop, 60)
        spoil(loop)
        assert advance_until_it_goes_back(loop) == 60, "better than none"
    with loop_of(tmp_path / "two", recovery=GOES_BACK, checkpoint={"interval_steps": 30}) as loop:
        train_to(loop, 60)
        spoil(loop)
        assert advance_until_it_goes_back(loop) == 30


def test_resumed_run_has_seen_every_loss_that_the_unbroken_one_has(tmp_path: Path) -> None:
    with loop_of(tmp_path, checkpoint={"interval_steps": 20}) as loop:
        train_to(loop, 25)
        unbroken = loop.run.manifest().extra["watch"]
    with loop_of(tmp_path, checkpoint={"interval_steps": 20}) as loop:
        assert loop.run.state.step == 20
        train_to(loop, 25)
        assert loop.run.manifest().extra["watch"] == unbroken


def test_run_that_was_stopped_in_a_spike_goes_back_to_before_it(tmp_path: Path) -> None:
    recovery = GOES_BACK | {"spike_steps": 4}
    with loop_of(tmp_path, recovery=recovery, checkpoint={"interval_steps": 20}) as loop:
        train_to(loop, 70)
        spoil(loop)
        train_to(loop, 73)
        assert loop.saves.stop()[0] == "stopped"
    with loop_of(tmp_path, recovery=recovery, checkpoint={"interval_steps": 20}) as loop:
        assert loop.run.state.step == 73
        assert advance_until_it_goes_back(loop) == 60


def test_steps_that_are_not_finite_are_skipped_up_to_a_bound(tmp_path: Path) -> None:
    with loop_of(tmp_path, recovery={"non_finite": "skip", "most_skipped_steps": 2}) as loop:
        run = loop.run
        for _ in range(3):
            loop.advance()
        weight = run.model.final_norm.weight
        before = weight.clone()
        poison = weight.register_hook(lambda gradient: gradient * math.nan)
        loop.advance()
        loop.advance()
        poison.remove()
        assert torch.equal(weight, before)
        for _ in range(3):
            loop.advance()
        assert not torch.equal(weight, before)
        weight.register_hook(lambda gradient: gradient * math.nan)
        with pytest.raises(NonFiniteLossError, match="at step 9 "):
            for _ in range(5):
                loop.advance()


def test_part_of_the_model_where_it_began_is_named(tmp_path: Path) -> None:
    """https://github.com/karpathy/nanoGPT/issues/136: a loss that is NaN, without a word of where from."""
    with loop_of(tmp_path) as loop:
        run = loop.run
        loop.advance()
        run.model.blocks[1].expand.register_forward_hook(lambda module, inputs, output: output * math.inf)
        with pytest.raises(NonFiniteLossError) as caught:
            for _ in range(3):
                loop.advance()
        assert caught.value.step == 2
        told = str(caught.value.at(where_it_began(run, caught.value.step)))
        assert "at step 2" in told and "began in the output of blocks.1.expand (rank 0)" in told


def test_ranks_with_other_parameters_are_named() -> None:
    model = torch.nn.Linear(3, 2)

    def run_with(change: float) -> Any:
        def gather(own: list[int]) -> list[list[int]]:
            with torch.no_grad():
                model.weight[1, 2] += change
            theirs = [int(torch.hash_tensor(p.detach()).view(torch.int64)) for p in (model.weight, model.bias)]
            return [own, theirs]

        return SimpleNamespace(state=SimpleNamespace(model=model, step=7), gang=SimpleNamespace(gather=gather))

    require_same_parameters(run_with(0.0))
    with pytest.raises(DivergedError, match="after step 7 ranks hold other parameters than rank 0: weight on rank 1;"):
        require_same_parameters(run_with(1e-6))


def test_memory_that_is_not_enough_says_what_to_lower_and_by_how_much() -> None:
    error = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")
    assert is_out_of_memory(error) and not is_out_of_memory(RuntimeError("size mismatch"))
    told = str(explain_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB"), 12, recomputes=False))
    assert "lower micro_batch_sequences from 12 to 6" in told and "activation_checkpointing" in told
    assert "is 1 already" in str(explain_out_of_memory(error, 1, recomputes=True))


def test_run_that_stops_learning_is_finished_on_all_ranks_at_the_same_step(
    gangs: Any, tiny_config: dict[str, Any]
) -> None:
    """https://github.com/Lightning-AI/pytorch-lightning/issues/379."""
    config = {
        **tiny_config,
        "validation": {"interval_steps": 2, "batches": 1},
        "early_stopping": {"patience_validations": 2, "minimum_improvement": 100.0},
        "recovery": {"parameter_check_interval_steps": 3},
    }
    run = gangs.finish("run", config, 2)
    assert {(outcome["outcome"], outcome["step"]) for outcome in run.outcomes()} == {("finished", 6)}
    assert "2 validations without a better loss" in run.outcomes()[0]["message"]
    again = gangs.finish("again", config, 2, generation=2)
    assert again.records("start")[0]["resumed_from_step"] == 6
    assert not again.records("step")


def test_improvement_without_a_patience_is_refused() -> None:
    with pytest.raises(ValidationError, match="give both"):
        TrainingConfig.model_validate({"early_stopping": {"minimum_improvement": 0.1}})
