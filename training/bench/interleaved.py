"""Interleaved timing: runs steps on request, so that two training runs can be timed alternately.

Each line on standard input is a number of steps. The response is one line of JSON with the duration of each step in
seconds. A first response, before any request, reports that the run is ready.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from training.bench.synthetic import write_dataset
from training.config import TrainingConfig
from training.loop.build import build_run
from training.loop.interruption import Interruption
from training.loop.job import Job
from training.loop.trainer import Loop, Progress
from training.observe.metrics import MetricsFile
from training.process.distributed import join_gang
from training.process.execution import set_up_process

NEVER_STEPS = 1_000_000_000


@contextmanager
def open_loop(config: TrainingConfig, vocabulary_size: int, folder: Path) -> Iterator[Loop]:
    """Set up a single-process training loop on synthetic tokens, with every component of a real run.

    Args:
        config: training config; its intervals determine whether the run saves and validates.
        vocabulary_size: number of token ids.
        folder: folder for the dataset, checkpoints and metrics.
    """
    tokens = 64 * config.global_batch_size * config.model.shape.sequence_length
    dataset = write_dataset(folder / "dataset", max(tokens, 1 << 20), vocabulary_size, config.seed)
    gang = join_gang()
    set_up_process(config, gang.local_world_size, folder / "run")
    metrics = MetricsFile(folder / "run" / "metrics.jsonl")
    interruption = Interruption()
    interruption.watch(folder / "run")
    job = Job(config, dataset, str(folder / "checkpoints"), folder / "run", 1)
    try:
        run = build_run(job, gang, interruption, metrics)
        loop = Loop(run, Progress())
        try:
            yield loop
        finally:
            loop.close()
            run.flags.discard()
            run.writer.close()
    finally:
        gang.leave()


def time_steps(loop: Loop, steps: int) -> list[float]:
    """Run the given number of steps; return the duration of each step in seconds."""
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        loop.advance()
        seconds.append(time.perf_counter() - started)
    return seconds


def serve_steps(config: dict[str, Any], vocabulary_size: int, requests: TextIO, responses: TextIO) -> None:
    """Run steps on request until ``requests`` ends."""
    never = {"interval_steps": NEVER_STEPS}
    complete = {
        "steps": NEVER_STEPS,
        "checkpoint": never,
        "validation": never,
        "schedule": {"kind": "constant"},
    } | config
    with (
        tempfile.TemporaryDirectory() as folder,
        open_loop(TrainingConfig.model_validate(complete | config), vocabulary_size, Path(folder)) as loop,
    ):
        responses.write(json.dumps({"ready": True}) + "\n")
        responses.flush()
        for line in requests:
            responses.write(json.dumps({"seconds": time_steps(loop, int(line))}) + "\n")
            responses.flush()


if __name__ == "__main__":
    serve_steps(json.loads(sys.argv[1]), int(sys.argv[2]), sys.stdin, sys.stdout)
