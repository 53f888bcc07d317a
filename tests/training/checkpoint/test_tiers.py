"""A fast tier before a durable one: it is read first, and may be lost, full or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.checkpoint.backend import Backend, open_backend
from training.checkpoint.layout import bytes_of
from training.checkpoint.log import LogWriter
from training.checkpoint.manifest import Manifest
from training.checkpoint.reading import read_tensors
from training.checkpoint.saving import SavePlan
from training.checkpoint.store import checkpoint_entries, read_manifest
from training.checkpoint.tiers import Holdings, TieredBackend
from training.checkpoint.writer import CheckpointWriter
from training.errors import ConfigurationError, CorruptCheckpointError, StoreError


def manifest(step: int) -> Manifest:
    return Manifest(
        step=step,
        position=0,
        generation=0,
        world_size=1,
        config={},
        config_digest="",
        scaler={},
        precision="",
        device_type="cpu",
        torch_version="2",
        parts=[],
    )


def save(backend: Backend, steps: int) -> torch.Tensor:
    log = LogWriter(backend, 0)
    writer = CheckpointWriter(backend, SavePlan(0, 1, log.epoch, keep_last=2), log)
    tensor = torch.zeros(0)
    for step in range(steps):
        tensor = torch.full((100_000,), float(step))
        writer.begin({"model/x": tensor}, {}, manifest(step), "interval")
        writer.wait()
        assert writer.error is None
    return tensor


def load(backend: Backend) -> torch.Tensor:
    found = read_manifest(backend, next(checkpoint_entries(backend)))
    tensor = torch.empty(100_000)
    read_tensors(backend, found.parts[0], {"model/x": bytes_of(tensor).numpy().data})
    return tensor


@pytest.fixture
def tiers(tmp_path: Path) -> TieredBackend:
    backend = open_backend(f"{tmp_path / 'fast'},{tmp_path / 'durable'}")
    assert isinstance(backend, TieredBackend)
    return backend


def test_both_tiers_have_the_chunks_and_the_durable_one_alone_is_a_store(tiers: TieredBackend) -> None:
    saved = save(tiers, 4)
    fast, durable = tiers.tiers
    assert fast.keys("chunks/") == durable.keys("chunks/")
    assert torch.equal(load(tiers), saved)
    assert torch.equal(load(durable), saved)
    found = read_manifest(tiers, next(checkpoint_entries(tiers)))
    stored = sum(chunk.stored_bytes for chunk in found.chunks)
    assert Holdings(tiers).of(found) == {fast.url: stored, durable.url: stored}


@pytest.mark.parametrize("harm", ["damage", "loss"])
def test_what_the_fast_tier_has_not_whole_comes_from_the_durable_one(
    tiers: TieredBackend, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    saved = save(tiers, 1)
    fast, durable = tiers.tiers
    for key in fast.keys("chunks/"):
        if harm == "loss":
            fast.delete([key])
        else:
            fast.put(key, fast.get(key)[:-1] + b"?")
    assert torch.equal(load(tiers), saved)
    assert ("is damaged" in caplog.text) == (harm == "damage")
    for key in durable.keys("chunks/"):
        durable.put(key, b"?")
    with pytest.raises(CorruptCheckpointError):
        load(tiers)


def test_the_fast_tier_is_read_first(tiers: TieredBackend) -> None:
    saved = save(tiers, 1)
    durable = tiers.tiers[1]
    durable.delete(durable.keys("chunks/"))
    assert torch.equal(load(tiers), saved)


def test_a_full_disk_near_by_costs_speed_only(
    tiers: TieredBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(key: str, content: bytes) -> None:
        raise StoreError("no space left on device")

    monkeypatch.setattr(tiers.tiers[0], "put", refuse)
    assert torch.equal(save(tiers, 2), load(tiers))
    assert caplog.text.count("no space left") == 1


def test_what_another_node_collected_goes_from_the_fast_tier_too(tiers: TieredBackend) -> None:
    save(tiers, 1)
    fast, durable = tiers.tiers
    durable.delete(durable.keys("chunks/"))
    tiers.prune(tiers.near_keys())
    assert fast.keys("chunks/") == []


@pytest.mark.parametrize("url", ["a,b,c", "a,", "s3://b/x,dir"])
def test_wrong_tiers_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="DIRECTORY,URL"):
        open_backend(url)
