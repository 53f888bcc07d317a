"""One run that takes its steps when told to, so that two can be measured in turns.

Each line on standard input is a number of steps; the answer is one line of JSON: their seconds, one by one. The first
answer, before any line, says that the run is ready.
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

from training.assembly import Job, assemble
from training.bench.synthetic import write_dataset
from training.config import TrainingConfig
from training.distributed import join_gang
from training.execution import set_up_process
from training.interruption import Interruption
from training.metrics import MetricsFile
from training.trainer import Loop, Progress

NEVER_STEPS = 1_000_000_000


@contextmanager
def open_loop(config: TrainingConfig, vocabulary_size: int, folder: Path) -> Iterator[Loop]:
    """A gang of one that trains on fresh made-up tokens, with everything that a real run has.

    Args:
        config: of the run; it neither saves nor validates unless its intervals say so.
        vocabulary_size: of the tokens.
        folder: for dataset, checkpoints and metrics.
    """
    tokens = 64 * config.global_batch_sequences * config.model.shape.context
    dataset = write_dataset(folder / "dataset", max(tokens, 1 << 20), vocabulary_size, config.seed)
    gang = join_gang()
    set_up_process(config, gang.local_world_size, folder / "run")
    metrics = MetricsFile(folder / "run" / "metrics.jsonl")
    interruption = Interruption()
    interruption.watch(folder / "run")
    job = Job(config, dataset, str(folder / "checkpoints"), folder / "run", 1)
    try:
        run = assemble(job, gang, interruption, metrics)
        loop = Loop(run, Progress())
        try:
            yield loop
        finally:
            loop.close()
            run.ballot.forget()
            run.writer.close()
    finally:
        gang.leave()


def seconds_of_steps(loop: Loop, steps: int) -> list[float]:
    """Take steps; return what each took."""
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        loop.advance()
        seconds.append(time.perf_counter() - began)
    return seconds


def take_turns(config: dict[str, Any], vocabulary_size: int, commands: TextIO, answers: TextIO) -> None:
    """Serve steps until ``commands`` ends."""
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
        answers.write(json.dumps({"ready": True}) + "\n")
        answers.flush()
        for line in commands:
            answers.write(json.dumps({"seconds": seconds_of_steps(loop, int(line))}) + "\n")
            answers.flush()


if __name__ == "__main__":
    take_turns(json.loads(sys.argv[1]), int(sys.argv[2]), sys.stdin, sys.stdout)
