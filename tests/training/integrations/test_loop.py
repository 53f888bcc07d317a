"""Hand-written loops: a stopped and resumed loop equals an uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from training.checkpoint.checkpointer import Resumption
from training.errors import ConfigurationError
from training.integrations.loop import Loop
from training.integrations.positions import refuse_other_world_size
from training.script import Stopped, ThisRun


class Noisy(Dataset[Tensor]):
    """Rows with random noise, drawn from the process's generator."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, number: int) -> Tensor:
        return torch.full((4,), float(number)) + torch.rand(4)


class Trained:
    """A model, and everything that a script has before its loop."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.seen: list[Tensor] = []

    def step(self, batch: Tensor) -> None:
        self.seen.append(batch)
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        self.optimizer.step()

    def weights(self) -> Tensor:
        return torch.cat([each.detach().flatten() for each in self.model.parameters()])


def over_epochs(run: ThisRun, store: Path, rows: int = 20, stop_at: int = 0) -> Trained:
    """Train for three epochs of five batches; stop after a number of batches."""
    trained = Trained()
    loop = Loop(trained.model, trained.optimizer, state=[trained.scheduler], checkpoints=str(store))
    for _ in loop.epochs(3):
        for batch in loop.batches(DataLoader(Noisy(rows), batch_size=4, shuffle=True)):
            trained.step(batch)
            if len(trained.seen) == stop_at:
                run.interruption.wants_stop = True  # type: ignore[misc]
        trained.scheduler.step()
    return trained


def stop(run: ThisRun, store: Path, at: int) -> None:
    with pytest.raises(Stopped) as stopped:
        over_epochs(run, store, stop_at=at)
    assert stopped.value.message.endswith(f"stopped after step {at}")
    run.interruption.wants_stop = False  # type: ignore[misc]
    dist.destroy_process_group()


@pytest.mark.parametrize("at", [1, 5, 7], ids=["first batch", "end of an epoch", "middle of an epoch"])
def test_loop_over_epochs(run: ThisRun, tmp_path: Path, at: int) -> None:
    complete = over_epochs(run, tmp_path / "complete")
    dist.destroy_process_group()
    stop(run, tmp_path / "store", at)
    resumed = over_epochs(run, tmp_path / "store")
    assert len(complete.seen) == 15 and len(resumed.seen) == 15 - at
    assert all(torch.equal(one, two) for one, two in zip(complete.seen[at:], resumed.seen, strict=True))
    assert torch.equal(complete.weights(), resumed.weights())
    assert complete.scheduler.state_dict() == resumed.scheduler.state_dict()


def test_finished_loop_over_epochs_does_nothing(run: ThisRun, tmp_path: Path) -> None:
    complete = over_epochs(run, tmp_path / "store")
    dist.destroy_process_group()
    again = over_epochs(run, tmp_path / "store")
    assert not again.seen and torch.equal(again.weights(), complete.weights())


def test_shorter_epoch_is_rejected(run: ThisRun, tmp_path: Path) -> None:
    stop(run, tmp_path / "store", 4)
    with pytest.raises(ConfigurationError, match="the epoch has 3 batches, but the run already used 4"):
        over_epochs(run, tmp_path / "store", rows=12)


def over_steps(run: ThisRun, store: Path, stop_at: int = 0) -> tuple[Trained, list[Any]]:
    """Train for 12 steps on batches that are drawn ahead, as nanoGPT does."""
    trained = Trained()
    step, batch, best = 0, torch.rand(4, 4), 1e9
    loop = Loop(trained.model, trained.optimizer, steps=12, checkpoints=str(store))
    step, batch, best = loop.resume(step, batch, best)
    while step < 12:
        current, batch = batch, torch.rand(4, 4)
        trained.step(current)
        step, best = step + 1, min(best, float(current.sum()))
        run.interruption.wants_stop = step == stop_at  # type: ignore[misc]
        loop.after_step(step, batch, best)
    return trained, [step, batch, best]


def test_loop_over_steps_keeps_its_variables(run: ThisRun, tmp_path: Path) -> None:
    complete, ended = over_steps(run, tmp_path / "complete")
    dist.destroy_process_group()
    with pytest.raises(Stopped):
        over_steps(run, tmp_path / "store", stop_at=5)
    dist.destroy_process_group()
    resumed, ended_again = over_steps(run, tmp_path / "store")
    assert len(resumed.seen) == 7
    assert torch.equal(complete.weights(), resumed.weights())
    assert (ended[0], ended[2]) == (ended_again[0], ended_again[2]) and torch.equal(ended[1], ended_again[1])


def test_finished_loop_over_steps_exits(run: ThisRun, tmp_path: Path) -> None:
    over_steps(run, tmp_path / "store")
    dist.destroy_process_group()
    with pytest.raises(SystemExit) as ended:
        over_steps(run, tmp_path / "store")
    assert ended.value.code == 0


def test_other_variables_are_rejected(run: ThisRun, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        over_steps(run, tmp_path / "store", stop_at=5)
    dist.destroy_process_group()
    trained = Trained()
    loop = Loop(trained.model, trained.optimizer, steps=12, checkpoints=str(tmp_path / "store"))
    with pytest.raises(ConfigurationError, match="2 values of the loop, but resume"):
        loop.resume(0, torch.rand(4, 4))


def test_middle_of_an_epoch_needs_the_same_processes() -> None:
    saved = Resumption(step=7, world_size=2)
    with pytest.raises(ConfigurationError, match="2 processes saved step 7 in the middle of an epoch"):
        refuse_other_world_size(saved, batches=3)
    refuse_other_world_size(saved, batches=0)
