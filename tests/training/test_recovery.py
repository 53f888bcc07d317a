"""Recovery from bad losses, their diagnosis, and early stopping."""

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

from training.bench.interleaved import open_loop
from training.config import TrainingConfig
from training.config.recovery import RecoveryConfig
from training.errors import DivergedError, NonFiniteLossError
from training.loop.loss_watch import FIRST_STEPS, LossWatch
from training.loop.non_finite import require_same_parameters, where_it_began
from training.loop.step_result import StepReport
from training.loop.trainer import Loop
from training.process.out_of_memory import explain_out_of_memory, is_out_of_memory

SMALL = {
    "steps": 1000,
    "global_batch_size": 4,
    "micro_batch_size": 2,
    "model": {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32, "sequence_length": 16},
    "schedule": {"kind": "constant", "warmup_steps": 1},
    "threads": 1,
}


@contextmanager
def signals_kept() -> Iterator[None]:
    """Restore the signal handlers that a trainer replaces."""
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


def test_consecutive_losses_far_above_the_running_mean_are_a_spike() -> None:
    watch = LossWatch(RecoveryConfig(spike_deviations=6.0, spike_steps=2))
    for step in range(FIRST_STEPS + 20):
        assert not watch.note(report(step, 3.0 + 0.1 * (-1) ** step))
    assert not watch.note(report(100, 3.5))
    assert not watch.note(report(101, 9.0)) and watch.consecutive_spikes == 1
    assert not watch.note(report(102, 3.0)) and watch.consecutive_spikes == 0
    assert not watch.note(report(103, 9.0))
    again = LossWatch(RecoveryConfig(spike_deviations=6.0, spike_steps=1), watch.state())
    assert again.note(report(104, 9.0)), "a resumed run has the mean"
    assert watch.note(report(104, 9.0))


def test_rollback_after_a_spike_skips_its_data(tmp_path: Path) -> None:
    recovery = {"spike_deviations": 8.0, "spike_steps": 2, "max_rollbacks": 1}
    with loop_of(tmp_path, recovery=recovery, checkpoint={"interval_steps": 20}) as loop:
        run = loop.run
        train_to(loop, FIRST_STEPS + 20)
        run.patience.note(run.state.step, 0.1)
        expected = {name: tensor.clone() for name, tensor in run.state.tensors().items()}
        before = corrupt(loop)
        while run.state.step >= before:
            loop.advance()
        rolled_back_to = run.state.step
        assert rolled_back_to % 20 == 0 and run.watch.rollbacks == 1
        assert run.state.position > before * 4, "the batches of the spike are skipped"
        assert run.state.tensors().keys() == expected.keys()
        assert run.validation is None and run.patience.state()["best"] is None, "both are newer than the checkpoint"
        assert run.model.final_norm.weight.abs().max() < 10
        for _ in range(3):
            loop.advance()
        assert run.watch.consecutive_spikes == 0
        assert (run.state.step, run.manifest(run.state.capture()).extra["watch"]["rollbacks"]) == (
            rolled_back_to + 3,
            1,
        )
        corrupt(loop)
        with pytest.raises(DivergedError, match="diverged again after 1 rollbacks"):
            for _ in range(FIRST_STEPS):
                loop.advance()


def corrupt(loop: Loop) -> int:
    """Corrupt the weights; return the current step."""
    with torch.no_grad():
        loop.run.model.final_norm.weight.mul_(100.0)
    return loop.run.state.step


def train_to(loop: Loop, step: int) -> None:
    """Train up to a step, and wait for each save, so that none is postponed until the weights are corrupt."""
    while loop.run.state.step < step:
        loop.advance()
        loop.run.writer.wait()


def advance_until_rollback(loop: Loop) -> int:
    """Take steps until the run rolls back; return the step that it restores."""
    before = loop.run.state.step
    for _ in range(10):
        loop.advance()
        if loop.run.state.step <= before:
            return loop.run.state.step
    raise AssertionError(f"no rollback up to step {loop.run.state.step}")


ROLLS_BACK = {"spike_deviations": 8.0, "spike_steps": 2, "max_rollbacks": 1}


def test_postponed_save_does_not_begin_while_the_loss_is_in_doubt(tmp_path: Path, monkeypatch: Any) -> None:
    with loop_of(tmp_path, recovery=ROLLS_BACK, checkpoint={"interval_steps": 20}) as loop:
        train_to(loop, FIRST_STEPS + 5)
        with monkeypatch.context() as patched:
            patched.setattr(type(loop.run.writer), "is_busy", property(lambda writer: True))
            while loop.run.state.step < FIRST_STEPS + 20:
                loop.advance()
        corrupt(loop)
        assert advance_until_rollback(loop) == 40
        train_to(loop, 41)
        assert loop.run.watch.rollbacks == 1 and loop.run.model.final_norm.weight.abs().max() < 10


def test_postponed_save_begins_after_a_spike(tmp_path: Path, monkeypatch: Any) -> None:
    with loop_of(tmp_path, recovery=ROLLS_BACK | {"spike_steps": 5}, checkpoint={"interval_steps": 20}) as loop:
        train_to(loop, FIRST_STEPS + 9)
        corrupt(loop)
        loop.advance()
        assert loop.run.state.step == FIRST_STEPS + 10
        loop.advance()
        assert loop.run.watch.doubtful_since == FIRST_STEPS + 10
        with torch.no_grad():
            loop.run.model.final_norm.weight.div_(100.0)
        train_to(loop, FIRST_STEPS + 15)
        assert loop.run.watch.doubtful_since is None
        assert FIRST_STEPS + 10 < loop.run.writer.committed_step < FIRST_STEPS + 15


def test_rollback_skips_the_checkpoint_of_the_step_before_the_spike(tmp_path: Path) -> None:
    with loop_of(tmp_path, recovery=ROLLS_BACK, checkpoint={"interval_steps": 20}) as loop:
        train_to(loop, 59)
        corrupt(loop)  # visible in the loss at step 60, whose weights are not saved
        assert advance_until_rollback(loop) == 40
    with loop_of(tmp_path / "alone", recovery=ROLLS_BACK, checkpoint={"interval_steps": 60}) as loop:
        train_to(loop, 60)
        corrupt(loop)
        assert advance_until_rollback(loop) == 60, "the only checkpoint"
    with loop_of(tmp_path / "two", recovery=ROLLS_BACK, checkpoint={"interval_steps": 30}) as loop:
        train_to(loop, 60)
        corrupt(loop)
        assert advance_until_rollback(loop) == 30


def test_resumed_run_has_the_loss_statistics_of_an_unbroken_run(tmp_path: Path) -> None:
    with loop_of(tmp_path, checkpoint={"interval_steps": 20}) as loop:
        train_to(loop, 25)
        unbroken = loop.run.manifest(loop.run.state.capture()).extra["watch"]
    with loop_of(tmp_path, checkpoint={"interval_steps": 20}) as loop:
        assert loop.run.state.step == 20
        train_to(loop, 25)
        assert loop.run.manifest(loop.run.state.capture()).extra["watch"] == unbroken


def test_run_stopped_during_a_spike_rolls_back_past_it(tmp_path: Path) -> None:
    recovery = ROLLS_BACK | {"spike_steps": 4}
    with loop_of(tmp_path, recovery=recovery, checkpoint={"interval_steps": 20}) as loop:
        train_to(loop, 70)
        corrupt(loop)
        train_to(loop, 73)
        assert loop.saves.stop()[0] == "stopped"
    with loop_of(tmp_path, recovery=recovery, checkpoint={"interval_steps": 20}) as loop:
        assert loop.run.state.step == 73
        assert advance_until_rollback(loop) == 60


def test_non_finite_steps_are_skipped_up_to_the_limit(tmp_path: Path) -> None:
    with loop_of(tmp_path, recovery={"non_finite": "skip", "max_skipped_steps": 2}) as loop:
        run = loop.run
        for _ in range(3):
            loop.advance()
        weight = run.model.final_norm.weight
        before = weight.clone()
        hook = weight.register_hook(lambda gradient: gradient * math.nan)
        loop.advance()
        loop.advance()
        hook.remove()
        assert torch.equal(weight, before)
        for _ in range(3):
            loop.advance()
        assert not torch.equal(weight, before)
        weight.register_hook(lambda gradient: gradient * math.nan)
        with pytest.raises(NonFiniteLossError, match="at step 9 "):
            for _ in range(5):
                loop.advance()


def test_first_non_finite_part_of_the_model_is_named(tmp_path: Path) -> None:
    """https://github.com/karpathy/nanoGPT/issues/136: a NaN loss without any hint of its origin."""
    with loop_of(tmp_path) as loop:
        run = loop.run
        loop.advance()
        run.model.blocks[1].expand.register_forward_hook(lambda module, inputs, output: output * math.inf)
        with pytest.raises(NonFiniteLossError) as caught:
            for _ in range(3):
                loop.advance()
        assert caught.value.step == 2
        message = str(caught.value.at(where_it_began(run, caught.value.step)))
        assert "at step 2" in message and "first in the output of blocks.1.expand (rank 0)" in message


def test_ranks_with_different_parameters_are_named() -> None:
    model = torch.nn.Linear(3, 2)

    def run_with(change: float) -> Any:
        def gather(own: list[int]) -> list[list[int]]:
            with torch.no_grad():
                model.weight[1, 2] += change
            theirs = [int(torch.hash_tensor(p.detach()).view(torch.int64)) for p in (model.weight, model.bias)]
            return [own, theirs]

        return SimpleNamespace(state=SimpleNamespace(model=model, step=7), gang=SimpleNamespace(gather=gather))

    require_same_parameters(run_with(0.0))
    with pytest.raises(DivergedError, match="after step 7, parameters differ from rank 0's: weight on rank 1;"):
        require_same_parameters(run_with(1e-6))


def test_out_of_memory_error_names_the_setting_to_lower() -> None:
    error = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")
    assert is_out_of_memory(error) and not is_out_of_memory(RuntimeError("size mismatch"))
    message = str(
        explain_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB"), 12, recomputes=False)
    )
    assert "lower micro_batch_size from 12 to 6" in message and "activation_checkpointing" in message
    assert "micro_batch_size is already 1" in str(explain_out_of_memory(error, 1, recomputes=True))


def test_early_stopping_ends_all_ranks_at_the_same_step(gangs: Any, tiny_config: dict[str, Any]) -> None:
    """https://github.com/Lightning-AI/pytorch-lightning/issues/379."""
    config = {
        **tiny_config,
        "validation": {"interval_steps": 2, "batches": 1},
        "early_stopping": {"patience_validations": 2, "min_delta": 100.0},
        "recovery": {"parameter_check_interval_steps": 3},
    }
    run = gangs.finish("run", config, 2)
    assert {(outcome["outcome"], outcome["step"]) for outcome in run.outcomes()} == {("finished", 6)}
    assert "2 validations without a lower loss" in run.outcomes()[0]["message"]
    again = gangs.finish("again", config, 2, generation=2)
    assert again.records("start")[0]["resumed_from_step"] == 6
    assert not again.records("step")


def test_min_delta_requires_patience() -> None:
    with pytest.raises(ValidationError, match="set both"):
        TrainingConfig.model_validate({"early_stopping": {"min_delta": 0.1}})
