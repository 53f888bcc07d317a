"""The public Checkpointer: it works with any wrapper, and a save outlives a killed trainer."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.training.rank_process import PRELOADED
from training.checkpoint import Checkpointer, Retention
from training.checkpoint.layout import lay_out
from training.checkpoint.save import writer
from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.store import checkpoint_entries
from training.errors import ConfigurationError, StoreError, SupersededError
from training.process.children import STOP_SIGNALS


@pytest.fixture(autouse=True)
def _destroy_process_group() -> Iterator[None]:
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


def test_resumes_bit_for_bit_with_other_wrappers(tmp_path: Path) -> None:
    model, optimizer = build(1)
    checkpointer = Checkpointer(str(tmp_path), model, optimizer)
    assert checkpointer.resume().step == 0
    for _ in range(3):
        train(model, optimizer)
    optimizer.param_groups[0]["lr"] = 5e-3
    assert checkpointer.save(3, {"position": [1, "two"]}, wait=True)
    (result,) = checkpointer.take_results()
    assert result.step == 3 and result.bytes > 0 and result.blocked_seconds <= result.seconds
    random = torch.rand(3)
    train(model, optimizer)
    checkpointer.close()

    other, other_optimizer = build(2)
    wrapped = nn.parallel.DistributedDataParallel(torch.compile(other))
    resumed = Checkpointer(str(tmp_path), wrapped, other_optimizer, generation=1)
    found = resumed.resume()
    assert (found.step, found.extra) == (3, {"position": [1, "two"]})
    assert other_optimizer.param_groups[0]["lr"] == 5e-3
    assert other_optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    assert torch.equal(torch.rand(3), random)
    train(other, other_optimizer)
    for one, two in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    resumed.close()


def test_later_start_takes_over_the_store(tmp_path: Path) -> None:
    model, optimizer = build(1)
    first = Checkpointer(str(tmp_path), model, optimizer)
    first.resume()
    second = Checkpointer(str(tmp_path), model, optimizer, generation=1)
    second.resume()
    with pytest.raises(SupersededError, match="generation 1 has owned"):
        first.save(1, wait=True)
    assert second.save(1, wait=True)
    second.close()
    with pytest.raises(SupersededError):
        first.close()


def test_reports_invalid_use(tmp_path: Path) -> None:
    model, optimizer = build(1)
    with pytest.raises(ConfigurationError, match="keep_last: 1"):
        Checkpointer(str(tmp_path), model, optimizer, retention=Retention(keep_last=1))
    with pytest.raises(ConfigurationError, match="resume\\(\\) was not called; call it first"):
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


def test_dead_writer_process_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    model, optimizer = build(1)
    checkpointer = Checkpointer(str(tmp_path), model, optimizer)
    checkpointer.resume()
    assert checkpointer._writer is not None
    os.kill(checkpointer._writer._executor._process.pid, signal.SIGKILL)
    with pytest.raises(StoreError, match="writer process .* died, exit code -9"):
        checkpointer.save(1, wait=True)


@pytest.mark.parametrize("ready", [False, True], ids=["starting", "running"])
def test_writer_process_ignores_stop_signals(tmp_path: Path, ready: bool) -> None:
    """A service manager signals all processes of a unit, and the trainer needs the writer for its last save."""
    model, optimizer = build(1)
    checkpointer = Checkpointer(str(tmp_path), model, optimizer)
    checkpointer.resume()
    if ready:
        checkpointer.save(1, wait=True)
    assert checkpointer._writer is not None
    for number in STOP_SIGNALS:
        checkpointer._writer._executor._process.send_signal(number)
    assert checkpointer.save(2, wait=True)
    checkpointer.close()
    assert next(checkpoint_entries(open_backend(str(tmp_path)))).step == 2


def save_and_die(url: str) -> None:
    model, optimizer = build(1, width=1024)
    checkpointer = Checkpointer(url, model, optimizer)
    checkpointer.resume()
    checkpointer.save(7)
    os.kill(os.getpid(), signal.SIGKILL)


def test_copied_state_is_committed_after_the_trainer_is_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    trainer = context.Process(target=save_and_die, args=(str(tmp_path),))
    trainer.start()
    trainer.join(60)
    assert trainer.exitcode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while not (entries := list(checkpoint_entries(open_backend(str(tmp_path))))):
        assert time.monotonic() < deadline, "nothing was committed"
        time.sleep(0.02)
    assert [entry.step for entry in entries] == [7]
    model, optimizer = build(2, width=1024)
    checkpointer = Checkpointer(str(tmp_path), model, optimizer, generation=1)
    assert checkpointer.resume().step == 7
    assert all(
        torch.equal(one, two) for one, two in zip(model.parameters(), build(1, 1024)[0].parameters(), strict=True)
    )
    checkpointer.close()


@pytest.mark.parametrize("damage", ["bytes", "missing", "refused"])
def test_store_that_does_not_return_a_checkpoint_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """A file system or an S3 implementation may lose or change data after accepting it."""
    put = DirectoryBackend.put

    def other_put(self: DirectoryBackend, key: str, content: bytes) -> None:
        if damage == "refused":
            raise StoreError("no space left")
        if damage == "bytes":
            put(self, key, content[:-1] + bytes([content[-1] ^ 1]))

    monkeypatch.setattr(DirectoryBackend, "put", other_put)
    with pytest.raises(
        StoreError, match="no space left" if damage == "refused" else "the data read back differs from the data written"
    ):
        Checkpointer(str(tmp_path), *build(1)).resume()


def test_full_verification_compares_every_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of one chunk, from the largest tensor, does not detect a store that damages the small tensors' chunk."""
    put = DirectoryBackend.put

    def other_put(self: DirectoryBackend, key: str, content: bytes) -> None:
        is_damaged = key.startswith("chunks/") and 10_000 < len(content) < 1_000_000
        put(self, key, content[:-1] + bytes([content[-1] ^ 1]) if is_damaged else content)

    monkeypatch.setattr(DirectoryBackend, "put", other_put)
    with pytest.raises(StoreError, match="the data read back differs from the data written"):
        Checkpointer(str(tmp_path / "full"), *build(1, width=1024), compress=False, verification="full").resume()
    dist.destroy_process_group()
    part = Checkpointer(str(tmp_path / "part"), *build(1, width=1024), compress=False, verification="part")
    part.resume()
    part.close()


def test_full_verification_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    model, optimizer = build(1, width=1024)
    train(model, optimizer)
    checkpointer = Checkpointer(str(tmp_path), model, optimizer, verification="full")
    checkpointer.resume()
    assert "a checkpoint was written and read back" in caplog.text
    size = sum(tensor.nbytes for tensor in checkpointer._state.tensors().values())
    (written,) = re.findall(r"tensors, (\d+) bytes", caplog.text)
    assert int(written) > size, "all bytes and the manifest"
    assert open_backend(str(tmp_path)).keys("chunks/") == []
    checkpointer.close()


def test_only_a_new_run_writes_a_test_and_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    checkpointer = Checkpointer(str(tmp_path), *build(1))
    checkpointer.resume()
    assert "a part of a checkpoint was written and read back: 9 tensors" in caplog.text
    assert open_backend(str(tmp_path)).keys("chunks/") == []
    checkpointer.save(1, wait=True)
    checkpointer.close()
    dist.destroy_process_group()
    caplog.clear()
    resumed = Checkpointer(str(tmp_path), *build(2))
    assert resumed.resume().step == 1
    assert "written and read back" not in caplog.text
    resumed.close()


def test_layout_is_computed_again_only_if_a_tensor_has_changed_its_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts = []
    monkeypatch.setattr(writer, "lay_out", lambda share: layouts.append(lay_out(share)) or layouts[-1])
    model, optimizer = build(1)
    checkpointer = Checkpointer(str(tmp_path), model, optimizer)
    checkpointer.resume()
    for step in (1, 2, 3):
        train(model, optimizer)
        checkpointer.save(step, wait=True)
    assert len(layouts) == 1
    with torch.no_grad():
        model[1].running_mean = torch.zeros(64, dtype=torch.float64)
    checkpointer.save(4, wait=True)
    assert len(layouts) == 2
    checkpointer.close()
    dist.destroy_process_group()
    other, other_optimizer = build(2)
    resumed = Checkpointer(str(tmp_path), other, other_optimizer)
    resumed.resume()
    for one, two in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    resumed.close()


def test_every_rank_has_its_own_extra_state(tmp_path: Path) -> None:
    model, optimizer = build(1)
    checkpointer = Checkpointer(str(tmp_path), model, optimizer)
    checkpointer.resume()
    batch = torch.rand(3, 2)
    for step, extra in ((1, {"batch": batch}), (2, {"batch": batch, "more": "x" * 10_000}), (3, None)):
        assert checkpointer.save(step, {"step": step}, rank_extra=extra, wait=True)
        other, other_optimizer = build(2)
        reader = Checkpointer(str(tmp_path), other, other_optimizer)
        found = reader.resume()
        assert (found.step, found.extra, found.world_size) == (step, {"step": step}, 1)
        assert found.rank_extra.keys() == (extra or {}).keys()
        assert extra is None or torch.equal(found.rank_extra["batch"], batch)
        reader.close()
        checkpointer = Checkpointer(str(tmp_path), model, optimizer)
        checkpointer.resume()
    checkpointer.close()


def test_closes_although_a_forked_process_has_its_descriptors(tmp_path: Path) -> None:
    model, optimizer = build(1)
    checkpointer = Checkpointer(str(tmp_path), model, optimizer)
    checkpointer.resume()
    assert checkpointer.save(1, wait=True)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:  # like a worker of a DataLoader
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    try:
        checkpointer.close()
    finally:
        os.close(theirs)
        os.waitpid(child, 0)
        os.close(ours)
