"""The learning-rate range test: the rate grows step by step until the loss no longer falls (Smith 2017,
https://arxiv.org/abs/1506.01186, section 3.3). Nothing is saved."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from training.assembly import Job, assemble
from training.config import read_config
from training.distributed import Votes, join_gang
from training.errors import ConfigurationError
from training.execution import set_up_process
from training.interruption import Interruption
from training.metrics import MetricsFile
from training.step import take_step

SMOOTHING = 0.9
DIVERGED_FACTOR = 4.0
"""Times the lowest smoothed loss at which the test ends, as in fast.ai's finder."""


@dataclass(frozen=True)
class Point:
    """One step of the test: its rate, and the smoothed loss before it."""

    learning_rate: float
    loss: float


def suggest(points: list[Point]) -> float | None:
    """Return the rate at which the smoothed loss falls fastest against its logarithm; None if it never does."""
    slopes = [
        ((later.loss - earlier.loss) / math.log(later.learning_rate / earlier.learning_rate), earlier.learning_rate)
        for earlier, later in zip(points, points[1:])
    ]
    falling = [(slope, rate) for slope, rate in slopes if slope < 0]
    return min(falling)[1] if falling else None


def run_find_learning_rate(options: argparse.Namespace, output: TextIO = sys.stdout) -> int:
    """Run ``python -m training find-learning-rate``; print a JSON object, on rank 0. Works under torchrun, too.

    Asked to stop, it prints what it has, says that it is not complete, and returns 1.

    Raises:
        ConfigurationError: config and data do not fit together, or the range is none.
    """
    if not 0 < options.lowest < options.highest:
        raise ConfigurationError([f"--lowest {options.lowest}: must be more than 0 and less than --highest"])
    if options.steps < 2:
        raise ConfigurationError([f"--steps {options.steps}: a range has at least 2; raise it"])
    config = read_config(options.config)
    gang = join_gang()
    with tempfile.TemporaryDirectory() as folder:
        set_up_process(config, gang.local_world_size, Path(folder) / "run")
        job = Job(config, options.dataset, f"{folder}/checkpoints", Path(folder) / "run", 1)
        run = assemble(job, gang, Interruption(), MetricsFile(None))
        points: list[Point] = []
        average, weight = 0.0, 0.0
        is_complete = True
        for number in range(options.steps):
            rate = options.lowest * (options.highest / options.lowest) ** (number / (options.steps - 1))
            loss = float(take_step(run, rate).loss.item())
            agreed = gang.agree(Votes(loss=loss, stop=float(run.interruption.wants_stop)))
            if agreed.stop:
                is_complete = False
                break
            loss = agreed.loss
            average, weight = SMOOTHING * average + (1 - SMOOTHING) * loss, SMOOTHING * weight + (1 - SMOOTHING)
            points.append(Point(rate, average / weight))
            if gang.rank == 0:
                done = f"step {number + 1} of {options.steps}"
                sys.stderr.write(f"\r{done}: rate {rate:.3g}, loss {points[-1].loss:.4f} ")
            if not math.isfinite(loss) or points[-1].loss > DIVERGED_FACTOR * min(point.loss for point in points):
                break
        if gang.rank == 0:
            sys.stderr.write("\n")
            finite = [point for point in points if math.isfinite(point.loss)]
            report = {
                "complete": is_complete,
                "suggested_learning_rate": suggest(finite),
                "points": [vars(point) for point in finite],
            }
            output.write(json.dumps(report, indent=2) + "\n")
        run.writer.close()
    gang.leave()
    return 0 if is_complete else 1
