"""The writer stops compressing while it takes cores from training."""

from __future__ import annotations

import os

import pytest
import torch

from tests.training.checkpoint.runs import MemoryBackend, newest, save, start
from training.checkpoint.save.core_share import CoreShare
from training.checkpoint.save.executors import choose_placement
from training.checkpoint.store import read_manifest


class Clocks:
    """A thread that has a core for a share of the time."""

    def __init__(self) -> None:
        self.thread, self.elapsed, self.share = 0.0, 0.0, 1.0

    def work(self, meter: CoreShare, times: int) -> None:
        for _ in range(times):
            with meter.measured():
                self.elapsed += 0.01
                self.thread += 0.01 * self.share


def test_core_share_follows_the_load() -> None:
    clocks = Clocks()
    meter = CoreShare(lambda: clocks.thread, lambda: clocks.elapsed)
    clocks.share = 0.78
    clocks.work(meter, 50)
    assert not meter.is_short, "siblings that store chunks are not training"
    clocks.share = 0.5
    clocks.work(meter, 2)
    assert not meter.is_short, "two measurements may be unlucky"
    clocks.work(meter, 6)
    assert meter.is_short
    clocks.share = 0.78
    clocks.work(meter, 6)
    assert not meter.is_short


@pytest.mark.parametrize(
    ("yields", "is_short", "compresses"), [(True, True, False), (True, False, True), (False, True, True)]
)
def test_writer_compresses_unless_it_delays_training(
    monkeypatch: pytest.MonkeyPatch, yields: bool, is_short: bool, compresses: bool
) -> None:
    monkeypatch.setattr(CoreShare, "is_short", is_short)
    store = MemoryBackend()
    writer = start(store, yields=yields)
    save(writer, 1, {"model/zeros": torch.zeros(400_000)})
    (chunk,) = read_manifest(store, newest(store)).chunks
    assert (chunk.stored_bytes < chunk.bytes / 10) == compresses


@pytest.mark.parametrize(
    ("cores", "training_threads", "on_gpu", "shares"), [(2, 2, False, True), (2, 1, False, False), (2, 2, True, False)]
)
def test_writer_shares_cores_with_training_that_uses_all_of_them(
    monkeypatch: pytest.MonkeyPatch, cores: int, training_threads: int, on_gpu: bool, shares: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert choose_placement(0, 1, training_threads, on_gpu).shares_cores == shares
