"""The command `metrics`: loss, throughput and GPU use over the steps of a run, as a table, as JSON or as plots."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from trainstack import account
from trainstack.observe.node_events import Event, EventReader
from trainstack.observe.plots import plot
from trainstack.session import MISSING, Account, CommandError, Json, Name, Region, span_seconds

PATTERN = '{ ($.event = "trainer") || ($.event = "gpu_use") }'
"""Filter pattern for the events with metrics, so that only these are transferred."""
TABLE_ROWS = 20
MAX_PLOT_WIDTH = 120
GPU_USE_SECONDS = 60.0
"""Length of the intervals over which the GPU use of all nodes is averaged. Each node reports every 30 s."""


@dataclass(frozen=True)
class Step:
    """The metrics of one step. None: not reported.

    Attributes:
        unix_seconds: Time of the record.
        tokens_per_second: Throughput of all nodes; samples per second for a dataset without tokens.
        mfu: Model FLOPs utilization, from 0 to 1.
    """

    step: int
    unix_seconds: float
    loss: float | None
    learning_rate: float | None
    tokens_per_second: float | None
    step_seconds: float | None
    mfu: float | None


@dataclass(frozen=True)
class Series:
    """The metrics of a run, in order.

    Attributes:
        steps: One record for each logged step. Of a step that was trained again, the latest.
        validation: Step and loss of each validation.
        gpu_use: Time in Unix seconds, and GPU utilization in percent as a mean over the nodes.
    """

    steps: tuple[Step, ...]
    validation: tuple[tuple[int, float], ...]
    gpu_use: tuple[tuple[float, float], ...]


def add(app: typer.Typer) -> None:
    """Add the command to a command line."""
    app.command("metrics")(show_metrics)


def show_metrics(
    name: Name,
    region: Region = None,
    since: Annotated[str, typer.Option(help="Age of the oldest record, such as 30m, 6h or 2d.")] = "1h",
    plots: Annotated[bool, typer.Option("--plot", help="Plot loss, throughput and GPU use.")] = False,
    as_json: Json = False,
) -> None:
    """Print loss, learning rate, throughput and utilization of the latest steps."""
    oldest = time.time() - span_seconds(since)
    opened = Account(region)
    group = account.find(opened.client, name).log_group
    found = series(EventReader(opened.client("logs"), group, oldest, pattern=PATTERN).poll())
    if as_json:
        print(json.dumps(asdict(found)))
        return
    if not found.steps:
        raise CommandError(MISSING, f"{name}: no step was recorded in the last {since}; use --since for older steps")
    print("\n".join(plotted(found) if plots else table(found)))


def series(events: Iterable[Event]) -> Series:
    """Return the metrics that events report. The user's code can write any record, so invalid values are left out."""
    steps: dict[int, Step] = {}
    validation: dict[int, float] = {}
    use: dict[int, dict[str, float]] = {}
    for event in sorted(events, key=_time):
        if event["event"] == "gpu_use":
            percent = _number(event, "gpu_utilization_percent")
            if percent is not None:
                use.setdefault(int(_time(event) // GPU_USE_SECONDS), {})[str(event["instance_id"])] = percent
        record = event.get("record") if event["event"] == "trainer" else None
        if not isinstance(record, dict) or not isinstance(step := record.get("step"), int) or isinstance(step, bool):
            continue
        if record.get("record") == "step":
            steps[step] = _step(step, _time(event), record)
        elif record.get("record") == "validation" and (loss := _number(record, "loss")) is not None:
            validation[step] = loss
    return Series(
        tuple(steps[step] for step in sorted(steps)),
        tuple(sorted(validation.items())),
        tuple(
            ((interval + 0.5) * GPU_USE_SECONDS, math.fsum(nodes.values()) / len(nodes))
            for interval, nodes in sorted(use.items())
        ),
    )


def _step(step: int, unix_seconds: float, record: Mapping[str, Any]) -> Step:
    speed = _number(record, "tokens_per_second")
    return Step(
        step=step,
        unix_seconds=unix_seconds,
        loss=_number(record, "loss"),
        learning_rate=_number(record, "learning_rate"),
        tokens_per_second=_number(record, "samples_per_second") if speed is None else speed,
        step_seconds=_number(record, "step_seconds"),
        mfu=_number(record, "mfu"),
    )


def _time(event: Event) -> float:
    return _number(event, "unix_seconds") or 0.0


def _number(record: Mapping[str, Any], key: str) -> float | None:
    value = record.get(key)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number else None  # type: ignore[arg-type]  # the comparison is false for NaN


def table(found: Series) -> list[str]:
    """Return the latest steps as lines of text."""
    head = ("time", "step", "loss", "learning rate", "tokens/s", "s/step", "MFU")
    rows: list[tuple[str, ...]] = [head]
    for one in found.steps[-TABLE_ROWS:]:
        clock = time.strftime("%H:%M:%S", time.gmtime(min(max(one.unix_seconds, 0.0), 253402300799.0)))
        values = (
            (one.loss, "{:.4f}"),
            (one.learning_rate, "{:.3e}"),
            (one.tokens_per_second, "{:,.0f}"),
            (one.step_seconds, "{:.3f}"),
            (one.mfu, "{:.1%}"),
        )
        rows.append((clock, f"{one.step:,}", *("-" if value is None else form.format(value) for value, form in values)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]


def plotted(found: Series) -> list[str]:
    """Return plots of the loss, the throughput and the GPU use, for the width of the terminal."""
    width = min(MAX_PLOT_WIDTH, max(20, shutil.get_terminal_size().columns - 14))
    is_ascii = not (sys.stdout.encoding or "ascii").lower().startswith("utf")
    last = found.gpu_use[-1][0] if found.gpu_use else 0.0
    curves: list[tuple[str, list[tuple[float, float]], str]] = [
        ("loss by step", [(one.step, one.loss) for one in found.steps if one.loss is not None], ""),
        ("validation loss by step", [(float(step), loss) for step, loss in found.validation], ""),
        (
            "throughput by step",
            [(one.step, one.tokens_per_second) for one in found.steps if one.tokens_per_second is not None],
            "tokens/s",
        ),
        ("GPU use by minutes before the latest report", [((at - last) / 60, use) for at, use in found.gpu_use], "%"),
    ]
    lines: list[str] = []
    for title, points, unit in curves:
        if points or not title.startswith("validation"):
            lines += [*plot(title, points, unit=unit, width=width, is_ascii=is_ascii), ""]
    return lines[:-1]
