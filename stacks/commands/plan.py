"""`candidates --plan`: print the distribution of a run's cost and duration before a deploy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from stacks.capacity.simulation.expected import Expected, NotEstimable, expected
from stacks.capacity.simulation.spread import Spread
from stacks.capacity.simulation.windows import WindowError
from stacks.capacity.training_time import TrainingTime, training_time
from stacks.config import DeploymentConfig
from stacks.errors import ConfigError, Problem
from stacks.loading import load

HELP = (
    "instead of types, print the distribution of the run's cost and duration, simulated with the run controller in "
    "random markets or with the traces"
)
BINS = 12
WIDTH = 40


def show(path: Path, *, traces: Path | None, runs: int, as_json: bool) -> int:
    """Print the plan of a deployment file, and return 0.

    Raises:
        ConfigError: The training time or a price is unknown, or the traces are invalid.
    """
    if runs < 1:
        raise ConfigError("--runs", [Problem("--runs", runs, "must be at least 1", "use the default, or a number")])
    config = load(path)
    try:
        found = expected(config, known_time(config, str(path)), traces=traces, runs=runs)
    except NotEstimable as error:
        problem = Problem("capacity", config.capacity.market, f"the cost cannot be estimated: {error}", "see above")
        raise ConfigError(str(path), [problem]) from error
    except WindowError as error:
        raise ConfigError(str(traces), [Problem("--traces", str(traces), str(error), "correct the traces")]) from error
    if as_json:
        print(json.dumps(asdict(found), indent=2))
    else:
        print("\n".join(lines(config, found)))
    return 0


def known_time(config: DeploymentConfig, source: str) -> TrainingTime:
    """Return the training time. Raises ConfigError if the deployment file does not determine it."""
    found = training_time(config)
    if found is None:
        rule = "must be set: the training time cannot be estimated for this model and these instance types"
        remedy = "measure the time per step with `python -m training bench`, and multiply it by training.config.steps"
        raise ConfigError(source, [Problem("limits.training_hours", None, rule, remedy)])
    return found


def lines(config: DeploymentConfig, found: Expected) -> list[str]:
    """Return the plan as lines of text."""
    limit, nodes = config.limits.deadline_hours, config.capacity.nodes
    heads = f"{'':18}{'mean':>10}{'10%':>10}{'median':>10}{'90%':>10}{'worst':>10}"
    text = [
        f"{config.name}: {nodes} x {' or '.join(config.capacity.instance_types)}, {config.capacity.market}, "
        f"{len(found.each_usd)} simulated runs",
        heads,
        _row("cost, USD", found.usd),
        _row("duration, h", found.hours),
        f"on demand: {found.on_demand_share:.0%} of the billed time; launches: {found.starts:.1f} per run",
    ]
    if found.on_demand_usd is not None:
        saved = 1.0 - found.usd.mean / found.on_demand_usd
        text.append(f"all on demand: {found.on_demand_usd:,.2f} USD; saved: {saved:.0%}")
    if limit is not None:
        text.append(f"deadline of {limit:g} h missed: {found.missed:.1%} of the runs")
    text += ["", "cost, USD", *histogram(found.each_usd), "", "duration, h", *histogram(found.each_hours), ""]
    return [*text, *(f"- {note}" for note in found.assumptions)]


def _row(label: str, spread: Spread) -> str:
    values = (spread.mean, spread.low, spread.median, spread.high, spread.worst)
    return f"{label:18}" + "".join(f"{value:>10,.2f}" for value in values)


def histogram(values: Sequence[float]) -> list[str]:
    """Return a text plot of the distribution: one line for each of at most BINS intervals."""
    low, high = min(values), max(values)
    width = (high - low) / BINS
    if width < 1e-9:
        return [f"{low:>12,.2f}            {'#' * WIDTH} {len(values)}"]
    counts = [0] * BINS
    for value in values:
        counts[min(BINS - 1, int((value - low) / width))] += 1
    most = max(counts)
    bounds = [(low + index * width, low + (index + 1) * width) for index in range(BINS)]
    return [
        f"{start:>12,.2f} to {end:>9,.2f}  {'#' * round(count / most * WIDTH)} {count}"
        for (start, end), count in zip(bounds, counts, strict=True)
    ]
