"""The `find-learning-rate` command runs a learning-rate range test without saving any state."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import TextIO

from training.config import read_config
from training.errors import ConfigurationError
from training.loop.build import build_run
from training.loop.interruption import Interruption
from training.loop.job import Job
from training.loop.step import take_step
from training.observe.metrics import MetricsFile
from training.process.distributed import join_gang
from training.process.execution import set_up_process
from training.tuning.lr_range_test import RangeTest, suggest


def run_find_learning_rate(options: argparse.Namespace, output: TextIO = sys.stdout) -> int:
    """Run ``python -m training find-learning-rate``, directly or under torchrun; rank 0 prints a JSON object.

    On a stop request, rank 0 prints the points measured so far with ``"complete": false``, and the exit code is 1.

    Raises:
        ConfigurationError: The config does not match the data, or the range is invalid.
    """
    if not 0 < options.lowest < options.highest:
        raise ConfigurationError([f"--lowest {options.lowest}: must be greater than 0 and less than --highest"])
    if options.steps < 2:
        raise ConfigurationError([f"--steps {options.steps}: must be at least 2; raise it"])
    config = read_config(options.config)
    gang = join_gang()
    with tempfile.TemporaryDirectory() as folder:
        set_up_process(config, gang.local_world_size, Path(folder) / "run")
        job = Job(config, options.dataset, f"{folder}/checkpoints", Path(folder) / "run", 1)
        run = build_run(job, gang, Interruption(), MetricsFile(None))
        run.ledger = None  # no step gate: it would sum the loss over the ranks
        test = RangeTest(options.lowest, options.highest, options.steps)
        points, is_complete = test.run(
            gang, lambda rate: float(take_step(run, rate).loss.item()), lambda: run.interruption.wants_stop
        )
        if gang.rank == 0:
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
