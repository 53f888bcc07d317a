"""What the checkpoint benchmark measures: each function is one comparison, and returns plain numbers."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.checkpoint_methods import Method, OwnWriter, wait_until
from benchmarks.checkpoint_s3 import plain_download
from benchmarks.checkpoint_state import Workload
from training.checkpoint.layout import bytes_of
from training.checkpoint.reading import read_tensors
from training.checkpoint.store import checkpoint_entries, read_manifest

SAMPLE_SECONDS = 0.1
BASELINE_STEPS = 12
MATRIX = 1024


def saves(workload: Workload, methods: Mapping[str, Method], repeats: int) -> dict[str, dict[str, float]]:
    """Blocked and durable seconds of each method, medians of interleaved saves; the first of each is not counted.

    The order is another one in each round: a process that still gives back its memory slows whatever comes next.
    """
    blocked: dict[str, list[float]] = {name: [] for name in methods}
    durable: dict[str, list[float]] = {name: [] for name in methods}
    order = random.Random(0)  # noqa: S311 (not a secret)
    for repeat in range(repeats + 1):
        for name, method in order.sample(sorted(methods.items()), len(methods)):
            workload.change()
            began = time.perf_counter()
            is_durable = method.begin()
            could_go_on = time.perf_counter()
            wait_until(is_durable)
            if repeat:
                blocked[name].append(could_go_on - began)
                durable[name].append(time.perf_counter() - began)
    return {
        name: {
            "blocked_seconds": statistics.median(blocked[name]),
            "durable_seconds": statistics.median(durable[name]),
        }
        for name in methods
    }


def durable(writer: OwnWriter, workload: Workload, repeats: int) -> float:
    """Median seconds from the wish for a save to its commit; the first is not counted."""
    seconds = []
    for _ in range(repeats + 1):
        workload.change()
        seconds.append(writer.save().seconds)
    return statistics.median(seconds[1:])


def contention(workload: Workload, methods: Mapping[str, Method], repeats: int) -> dict[str, dict[str, float]]:
    """Training time that a save costs while both want the same cores: blocked seconds plus excess step time.

    The normal step is measured just before each save.
    """
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in methods}
    for repeat in range(repeats + 1):
        for name, method in methods.items():
            workload.change()
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
                (statistics.median(column) for column in zip(*rows, strict=True)),
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
    """Most bytes that this process and its children had during ``save`` beyond what they had before.

    Proportional set sizes: memory that two of them share counts once.
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
    """Stored bytes that each save adds, as a share of the state: dense, frozen, and unchanged."""
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


def restore(writer: OwnWriter, workload: Workload, repeats: int) -> float:
    """Median seconds to read and verify the newest checkpoint into tensors that are there."""
    manifest = read_manifest(writer.backend, next(checkpoint_entries(writer.backend)))
    landing = {name: torch.empty_like(tensor) for name, tensor in workload.tensors().items()}
    memory = {name: bytes_of(tensor).numpy().data for name, tensor in landing.items()}
    seconds = [_timed(lambda: read_tensors(writer.backend, manifest.parts[0], memory)) for _ in range(repeats + 1)][1:]
    if not all(torch.equal(landing[name], tensor) for name, tensor in workload.tensors().items()):
        raise SystemExit("what was read is not what was saved")
    return statistics.median(seconds)


def torch_restore(path: Path, workload: Workload, repeats: int) -> dict[str, float]:
    """Median seconds of ``torch.load``, and of loading memory-mapped and copying into tensors that are there."""
    landing = {name: torch.empty_like(tensor) for name, tensor in workload.tensors().items()}

    def mapped() -> None:
        loaded: dict[str, Any] = torch.load(path, mmap=True, weights_only=True)
        for name, tensor in landing.items():
            tensor.copy_(loaded[name])

    return {
        "torch.load": statistics.median(
            [_timed(lambda: torch.load(path, weights_only=True)) for _ in range(repeats + 1)][1:]
        ),
        "torch.load(mmap) and copy": statistics.median([_timed(mapped) for _ in range(repeats + 1)][1:]),
    }


def s3_restore(writer: OwnWriter, workload: Workload, repeats: int) -> dict[str, float]:
    """Median seconds from S3: verified restore, and a plain parallel download of the same stored bytes."""
    manifest = read_manifest(writer.backend, next(checkpoint_entries(writer.backend)))
    keys = [f"run/{chunk.key}" for chunk in manifest.chunks]
    downloads = [_timed(lambda: plain_download(keys)) for _ in range(repeats + 1)][1:]
    return {"plain download": statistics.median(downloads), "restore": restore(writer, workload, repeats)}
