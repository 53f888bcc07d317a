"""A local tier in front of a durable one: it is read first, and may be lost, full or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.checkpoint.layout import bytes_of
from training.checkpoint.log import LogWriter
from training.checkpoint.manifest import Manifest
from training.checkpoint.save.rank_save import SavePlan
from training.checkpoint.save.writer import CheckpointWriter
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.tiers import TierContents, TieredBackend
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.store import checkpoint_entries, read_manifest, read_tensors
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
    writer = CheckpointWriter(backend, SavePlan(0, 1, log.fence), log)
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
    backend = open_backend(f"{tmp_path / 'local'},{tmp_path / 'durable'}")
    assert isinstance(backend, TieredBackend)
    return backend


def test_both_tiers_have_the_chunks_and_the_durable_one_is_a_complete_store(tiers: TieredBackend) -> None:
    saved = save(tiers, 4)
    local, durable = tiers.tiers
    assert local.keys("chunks/") == durable.keys("chunks/")
    assert torch.equal(load(tiers), saved)
    assert torch.equal(load(durable), saved)
    found = read_manifest(tiers, next(checkpoint_entries(tiers)))
    stored = sum(chunk.stored_bytes for chunk in found.chunks)
    assert TierContents(tiers).stored_bytes(found) == {local.url: stored, durable.url: stored}


@pytest.mark.parametrize("harm", ["damage", "loss"])
def test_missing_and_damaged_local_chunks_are_read_from_the_durable_tier(
    tiers: TieredBackend, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    saved = save(tiers, 1)
    local, durable = tiers.tiers
    for key in local.keys("chunks/"):
        if harm == "loss":
            local.delete([key])
        else:
            local.put(key, local.get(key)[:-1] + b"?")
    assert torch.equal(load(tiers), saved)
    assert ("is damaged" in caplog.text) == (harm == "damage")
    for key in durable.keys("chunks/"):
        durable.put(key, b"?")
    with pytest.raises(CorruptCheckpointError):
        load(tiers)


def test_local_tier_is_read_first(tiers: TieredBackend) -> None:
    saved = save(tiers, 1)
    durable = tiers.tiers[1]
    durable.delete(durable.keys("chunks/"))
    assert torch.equal(load(tiers), saved)


def test_full_local_disk_costs_only_speed(
    tiers: TieredBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(key: str, content: bytes) -> None:
        raise StoreError("no space left on device")

    monkeypatch.setattr(tiers.tiers[0], "put", refuse)
    assert torch.equal(save(tiers, 2), load(tiers))
    assert caplog.text.count("no space left") == 1


def test_chunks_collected_by_another_node_are_deleted_from_the_local_tier(tiers: TieredBackend) -> None:
    save(tiers, 1)
    local, durable = tiers.tiers
    durable.delete(durable.keys("chunks/"))
    tiers.prune(tiers.local_keys())
    assert local.keys("chunks/") == []


@pytest.mark.parametrize("url", ["a,b,c", "a,", "s3://b/x,dir"])
def test_invalid_tiers_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="DIRECTORY,URL"):
        open_backend(url)
