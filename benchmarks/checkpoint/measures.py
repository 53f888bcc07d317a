"""Measurements for the checkpoint benchmark. Each function makes one comparison and returns plain numbers."""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch

from benchmarks.checkpoint.methods import Method, OwnWriter, wait_until
from benchmarks.checkpoint.s3 import plain_download
from benchmarks.checkpoint.state import Workload
from training.checkpoint.layout import bytes_of
from training.checkpoint.storage.backend import Backend
from training.checkpoint.store import checkpoint_entries, read_manifest, read_tensors

SAMPLE_SECONDS = 0.1
BASELINE_STEPS = 12
MATRIX = 1024
Item = TypeVar("Item")


Rounds = dict[str, list[float]]
"""A method's values, one for each round."""
MIN_ROUNDS = 3
"""Minimum number of rounds in a part, even after its time limit. The median of fewer would be an extreme value."""


@dataclass(frozen=True)
class Limit:
    """The number of measured rounds in a part, and the time (on `time.monotonic()`) after which no round begins."""

    rounds: int
    until_seconds: float

    def numbers(self) -> Iterator[int]:
        """Yield 0 for the warm-up round, and then the numbers of the measured rounds."""
        for number in range(self.rounds + 1):
            if number > MIN_ROUNDS and time.monotonic() > self.until_seconds:
                return
            yield number

    def interleaved(self, methods: Mapping[str, Item]) -> Iterator[tuple[int, str, Item]]:
        """Yield each round's number, and each method with its name, in an order that changes in each round."""
        order = random.Random(0)  # noqa: S311 (not a secret)
        for number in self.numbers():
            for name, method in order.sample(sorted(methods.items()), len(methods)):
                yield number, name, method

    def seconds_of(self, work: Callable[[], object]) -> list[float]:
        """Return the duration of each round except the first, in seconds."""
        return [_timed(work) for _ in self.numbers()][1:]


def saves(workload: Workload, methods: Mapping[str, Method], limit: Limit) -> dict[str, Rounds]:
    """Return each method's blocked and durable seconds in interleaved saves, excluding each method's first save.

    The order changes in each round: a process that is still freeing its memory slows down the next method.
    """
    blocked: dict[str, list[float]] = {name: [] for name in methods}
    durable: dict[str, list[float]] = {name: [] for name in methods}
    for repeat, name, method in limit.interleaved(methods):
        workload.change()
        os.sync()
        began = time.perf_counter()
        is_durable = method.begin()
        unblocked = time.perf_counter()
        wait_until(is_durable)
        if repeat:
            blocked[name].append(unblocked - began)
            durable[name].append(time.perf_counter() - began)
    return {name: {"blocked_seconds": blocked[name], "durable_seconds": durable[name]} for name in methods}


def durable(writer: OwnWriter, workload: Workload, limit: Limit) -> list[float]:
    """Return the seconds from requesting a save to its commit, excluding the first save."""
    seconds = []
    for _ in limit.numbers():
        workload.change()
        seconds.append(writer.save().seconds)
    return seconds[1:]


def contention(workload: Workload, methods: Mapping[str, Method], limit: Limit) -> dict[str, Rounds]:
    """Return the training time that a save costs on shared cores, as blocked seconds plus excess step time.

    The normal step time is measured directly before each save. The order of the methods alternates, and no save begins
    while the kernel is still writing the pages of an earlier one, since that would slow down the next method.
    """
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in methods}
    for repeat in limit.numbers():
        for name, method in list(methods.items())[:: -1 if repeat % 2 else 1]:
            workload.change()
            os.sync()
            normal = statistics.median(_timed(_matmul_step) for _ in range(BASELINE_STEPS))
            began = time.perf_counter()
            is_durable = method.begin()
            lost, steps = time.perf_counter() - began, []
            while not is_durable():
                steps.append(_timed(_matmul_step))
            lost += sum(steps) - normal * len(steps)
            ratio = statistics.median(steps) / normal if steps else 1.0
            if repeat:
                found[name].append((lost, ratio, time.perf_counter() - began))
    return {
        name: dict(
            zip(
                ("lost_seconds", "step_ratio", "durable_seconds"),
                (list(column) for column in zip(*rows, strict=True)),
                strict=True,
            )
        )
        for name, rows in found.items()
    }


def _matmul_step() -> None:
    one = torch.full((MATRIX, MATRIX), 0.5)
    for _ in range(8):
        one = (one @ one).tanh()


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def peak_memory(save: Callable[[], object]) -> int:
    """Return the peak memory of this process and its children during ``save``, minus their memory before it, in bytes.

    Uses proportional set sizes, which count shared memory once.
    """
    before, peak, stop = _tree_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.is_set():
            peak = max(peak, _tree_bytes())
            stop.wait(SAMPLE_SECONDS)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        save()
    finally:
        stop.set()
        watcher.join()
    return peak - before


def _tree_bytes() -> int:
    own = psutil.Process()
    return sum(int(process.memory_full_info().pss) for process in (own, *own.children(recursive=True)))


def stored_bytes(workload: Workload, writer: OwnWriter) -> dict[str, float]:
    """Return the stored bytes that each save adds, as a share of the state, for dense, frozen and unchanged states."""
    shares = {}

    def save(name: str) -> None:
        result = writer.save()
        shares[name] = result.written_bytes / result.bytes

    workload.step()
    save("dense")
    workload.train_only(lambda name: not name.startswith("blocks.") or int(name.split(".")[1]) >= 10)
    workload.step()
    save("10 of 12 blocks frozen")
    save("best equal to last")
    workload.train_only(lambda name: True)
    workload.untie_head()
    workload.step()
    writer.save()
    workload.train_only(lambda name: name.startswith("head."))
    workload.step()
    save("all but the head frozen")
    workload.train_only(lambda name: True)
    return shares


def restores(stores: Mapping[str, Backend], path: Path, workload: Workload, limit: Limit) -> Rounds:
    """Return the seconds of each restore of the same state, in interleaved rounds.

    Args:
        stores: this project's stores, each with the state in its newest checkpoint.
        path: the state as ``torch.save`` wrote it. ``torch.load`` allocates tensors; the other methods read, and verify
            or copy, into existing ones.
        workload: the state, with which the tensors are compared after the last round.
        limit: the number of rounds.
    """
    targets = _targets(workload)

    def mapped() -> None:
        loaded: dict[str, Any] = torch.load(path, mmap=True, weights_only=True)
        for name, tensor in targets.items():
            tensor.copy_(loaded[name])

    into_targets: dict[str, Callable[[], object]] = {
        **{f"own {name}": _own_restore(store, targets) for name, store in stores.items()},
        "torch.load(mmap) and copy": mapped,
    }
    methods = {"torch.load": lambda: torch.load(path, weights_only=True), **into_targets}
    seconds: Rounds = {name: [] for name in methods}
    for repeat, name, method in limit.interleaved(methods):
        took = _timed(method)
        if repeat:
            seconds[name].append(took)
    for method in into_targets.values():
        for tensor in targets.values():
            tensor.zero_()
        method()
        _check(targets, workload)
    return seconds


def _targets(workload: Workload) -> dict[str, torch.Tensor]:
    """Return tensors into which the state can be restored."""
    return {name: torch.empty_like(tensor) for name, tensor in workload.tensors().items()}


def _own_restore(store: Backend, targets: Mapping[str, torch.Tensor]) -> Callable[[], object]:
    """Return a function that reads and verifies the newest checkpoint into the tensors."""
    manifest = read_manifest(store, next(checkpoint_entries(store)))
    memory = {name: bytes_of(tensor).numpy().data for name, tensor in targets.items()}
    return lambda: read_tensors(store, manifest.parts[0], memory)


def _check(targets: Mapping[str, torch.Tensor], workload: Workload) -> None:
    if not all(torch.equal(targets[name], tensor) for name, tensor in workload.tensors().items()):
        raise SystemExit("the restored state differs from the saved one")


def s3_restore(writer: OwnWriter, workload: Workload, limit: Limit) -> Rounds:
    """Return the seconds for a verified restore from S3 and for a plain parallel download of the same bytes."""
    manifest = read_manifest(writer.backend, next(checkpoint_entries(writer.backend)))
    keys = [f"run/{chunk.key}" for chunk in manifest.chunks]
    downloads = limit.seconds_of(lambda: plain_download(keys))
    targets = _targets(workload)
    restored = limit.seconds_of(_own_restore(writer.backend, targets))
    _check(targets, workload)
    return {"plain download": downloads, "restore": restored}
