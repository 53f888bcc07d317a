"""The writer stops compressing while it takes cores from training."""

from __future__ import annotations

import os
import time

import pytest
import torch

from tests.training.checkpoint.runs import MemoryBackend, newest, save, start
from training.checkpoint.save.executors import choose_placement
from training.checkpoint.save.other_load import OtherLoad, busy_seconds
from training.checkpoint.store import read_manifest


class Machine:
    """A machine on which this process and others use a number of cores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        self.elapsed = self.own = self.busy = 0.0

    def load(self, threads: int) -> OtherLoad:
        return OtherLoad(threads, lambda: self.busy, lambda: self.own, lambda: self.elapsed)

    def run(self, own_cores: float, other_cores: float, seconds: float = 0.3) -> None:
        self.elapsed += seconds
        self.own += own_cores * seconds
        self.busy += (own_cores + other_cores) * seconds


@pytest.mark.parametrize(
    ("threads", "own", "other", "is_high"),
    [
        (2, 2.0, 0.0, False),
        (2, 1.2, 0.1, False),  # the threads wait for each other
        (2, 1.0, 1.0, True),  # training has a thread on each core
        (1, 1.0, 1.0, False),  # the writer of another rank encodes
        (1, 0.5, 1.5, True),  # two ranks train and encode
    ],
)
def test_other_load_is_high_if_training_needs_the_cores(
    monkeypatch: pytest.MonkeyPatch, threads: int, own: float, other: float, is_high: bool
) -> None:
    machine = Machine(monkeypatch, cores=2)
    load = machine.load(threads)
    machine.run(own, other)
    assert load.is_high == is_high


def test_other_load_follows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, cores=2)
    load = machine.load(threads=2)
    machine.run(1.0, 1.0, seconds=0.1)
    assert not load.is_high, "the time is too short for a measurement"
    answers = []
    for own, other in ((1.0, 1.0), (2.0, 0.0)):
        machine.run(own, other)
        answers.append(load.is_high)
    assert answers == [True, False]


def test_kernel_counts_the_time_of_this_process() -> None:
    busy, own = busy_seconds(), time.process_time()
    while time.process_time() - own < 0.3:
        pass
    assert busy_seconds() - busy >= 0.2


@pytest.mark.parametrize(
    ("yields", "is_high", "compresses"), [(True, True, False), (True, False, True), (False, True, True)]
)
def test_writer_compresses_unless_it_delays_training(
    monkeypatch: pytest.MonkeyPatch, yields: bool, is_high: bool, compresses: bool
) -> None:
    monkeypatch.setattr(OtherLoad, "is_high", is_high)
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
