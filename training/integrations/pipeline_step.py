"""Runs one step of a pipeline that does not train: ``entrypoint: training/integrations/pipeline_step.py``.

The step's function receives ``weights``, ``dataset`` and ``output``, and returns a mapping from metrics to numbers,
which becomes a ``result`` record. Without a function, the step ends once the node has prepared and staged the dataset.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping

from training.errors import ConfigurationError, TrainingError
from training.script import ThisRun, this_run
from training.user_code import call

OUTPUT = "output"
"""Folder in the run directory for the step's files, which the node uploads with the run's results."""


def run_step(run: ThisRun, options: argparse.Namespace) -> None:
    """Call the step's function, and report its metrics.

    Raises:
        ConfigurationError: The function does not exist, or needs weights but the step has none.
        TrainingError: The function returned something other than finite numbers, or not all metrics.
    """
    if options.function is None:
        return
    output = run.run_directory / OUTPUT
    output.mkdir(parents=True, exist_ok=True)
    returned = call(options.function, "function", {}, weights=options.weights, dataset=run.dataset, output=output)
    metrics = checked(options.function, {} if returned is None else returned, options.reports)
    run.report("result", metrics=metrics)


def checked(function: str, metrics: object, names: list[str]) -> dict[str, float]:
    """Return a function's metrics.

    Raises:
        TrainingError: They are not finite numbers, or some of ``names`` are missing.
    """
    if not isinstance(metrics, Mapping):
        raise TrainingError(f"{function}: returned {type(metrics).__name__}; return a mapping from metrics to numbers")
    wrong = [
        name
        for name, value in metrics.items()
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value)
    ]
    if wrong:
        raise TrainingError(f"{function}: {', '.join(map(str, wrong))}: not finite numbers")
    missing = [name for name in names if name not in metrics]
    if missing:
        raise TrainingError(f"{function}: did not return {', '.join(missing)}, which the step reports")
    return {str(name): float(value) for name, value in metrics.items()}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run one step of a pipeline that does not train.")
    parser.add_argument("--function", help="package.module:function; default: none")
    parser.add_argument("--weights", help="URL of the previous step's checkpoints")
    parser.add_argument("--reports", action="append", default=[], help="metric that the function must return")
    options = parser.parse_args()
    is_own = options.function is not None and options.function.startswith("training.inference.steps:")
    if is_own and options.weights is None:
        raise ConfigurationError([f"{options.function}: the step has no weights; let it follow a step that trains"])
    return options


if __name__ == "__main__":
    if os.environ.get("RANK", "0") == "0":
        run_step(this_run(), _options())
