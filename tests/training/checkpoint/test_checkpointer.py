"""The library for other trainers: three lines, any wrapper, and a save that outlives its trainer."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.training.rank_process import PRELOADED
from training.checkpoint import Checkpointer
from training.checkpoint.backend import open_backend
from training.checkpoint.store import checkpoint_entries
from training.errors import ConfigurationError, StoreError, SupersededError
from training.interruption import STOP_SIGNALS


@pytest.fixture(autouse=True)
def _no_process_group_is_left() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def build(seed: int, width: int = 64) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    width = next(model.parameters()).shape[1]
    model(torch.randn(8, width)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


class Wrapped(nn.Module):
    """Names as DistributedDataParallel and torch.compile make them."""

    def __init__(self, inner: nn.Module, name: str) -> None:
        super().__init__()
        self.add_module(name, inner)
        self._name = name

    def forward(self, x: torch.Tensor) -> Any:
        return getattr(self, self._name)(x)


def test_a_run_goes_on_where_it_was_whatever_wraps_the_model(tmp_path: Path) -> None:
    model, optimizer = build(1)
    checkpointer = Checkpointer(str(tmp_path), model, optimizer)
    assert checkpointer.resume().step == 0
    for _ in range(3):
        train(model, optimizer)
    optimizer.param_groups[0]["lr"] = 5e-3
    assert checkpointer.save(3, {"place": [1, "two"]}, wait=True)
    (result,) = checkpointer.take_results()
    assert result.step == 3 and result.bytes > 0 and result.blocked_seconds <= result.seconds
    random = torch.rand(3)
    train(model, optimizer)
    checkpointer.close()

    other, other_optimizer = build(2)
    resumed = Checkpointer(str(tmp_path), Wrapped(Wrapped(other, "_orig_mod"), "module"), other_optimizer, generation=1)
    found = resumed.resume()
    assert (found.step, found.extra) == (3, {"place": [1, "two"]})
    assert other_optimizer.param_groups[0]["lr"] == 5e-3
    assert other_optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    assert torch.equal(torch.rand(3), random)
    train(other, other_optimizer)
    for one, two in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    resumed.close()


def test_a_later_start_owns_the_store_and_the_earlier_one_is_told(tmp_path: Path) -> None:
    model, optimizer = build(1)
    first = Checkpointer(str(tmp_path), model, optimizer)
    first.resume()
    second = Checkpointer(str(tmp_path), model, optimizer, generation=1)
    second.resume()
    with pytest.raises(SupersededError, match="generation 1 owns"):
        first.save(1, wait=True)
    assert second.save(1, wait=True)
    second.close()
    with pytest.raises(SupersededError):
        first.close()


def test_what_cannot_work_is_said(tmp_path: Path) -> None:
    model, optimizer = build(1)
    with pytest.raises(ConfigurationError, match="keep_last: 1"):
        Checkpointer(str(tmp_path), model, optimizer, keep_last=1)
    with pytest.raises(ConfigurationError, match="resume\\(\\) comes first"):
        Checkpointer(str(tmp_path), model, optimizer).save(1)
    checkpointer = Checkpointer(str(tmp_path), model, optimizer)
    checkpointer.resume()
    checkpointer.save(1, wait=True)
    checkpointer.close()
    wider = build(1, width=32)
    before = {name: tensor.clone() for name, tensor in wider[0].state_dict().items()}
    with pytest.raises(ConfigurationError, match="has shape"):
        Checkpointer(str(tmp_path), *wider).resume()
    assert all(torch.equal(tensor, before[name]) for name, tensor in wider[0].state_dict().items())


def test_a_writer_process_that_is_gone_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    model, optimizer = build(1)
    checkpointer = Checkpointer(str(tmp_path), model, optimizer)
    checkpointer.resume()
    assert checkpointer._writer is not None
    os.kill(checkpointer._writer._host._process.pid, signal.SIGKILL)
    with pytest.raises(StoreError, match="writer process .* is gone"):
        checkpointer.save(1, wait=True)


@pytest.mark.parametrize("ready", [False, True], ids=["while it starts", "while it works"])
def test_no_signal_that_means_stop_ends_the_writer_process(tmp_path: Path, ready: bool) -> None:
    """A service manager sends it to all processes of a unit, and the trainer's last save needs the writer."""
    model, optimizer = build(1)
    checkpointer = Checkpointer(str(tmp_path), model, optimizer)
    checkpointer.resume()
    if ready:
        checkpointer.save(1, wait=True)
    assert checkpointer._writer is not None
    for number in STOP_SIGNALS:
        checkpointer._writer._host._process.send_signal(number)
    assert checkpointer.save(2, wait=True)
    checkpointer.close()
    assert next(checkpoint_entries(open_backend(str(tmp_path)))).step == 2


def save_and_die(url: str) -> None:
    model, optimizer = build(1, width=1024)
    checkpointer = Checkpointer(url, model, optimizer)
    checkpointer.resume()
    checkpointer.save(7)
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_was_copied_is_committed_though_the_trainer_is_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    trainer = context.Process(target=save_and_die, args=(str(tmp_path),))
    trainer.start()
    trainer.join(60)
    assert trainer.exitcode == -signal.SIGKILL
    give_up = time.monotonic() + 60
    while not (entries := list(checkpoint_entries(open_backend(str(tmp_path))))):
        assert time.monotonic() < give_up, "nothing was committed"
        time.sleep(0.02)
    assert [entry.step for entry in entries] == [7]
    model, optimizer = build(2, width=1024)
    checkpointer = Checkpointer(str(tmp_path), model, optimizer, generation=1)
    assert checkpointer.resume().step == 7
    assert all(
        torch.equal(one, two) for one, two in zip(model.parameters(), build(1, 1024)[0].parameters(), strict=True)
    )
    checkpointer.close()
