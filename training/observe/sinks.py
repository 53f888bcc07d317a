"""Additional sinks for metric records: TensorBoard, and CloudWatch through standard output."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, Protocol, TextIO

from training.config.observation import ObservationConfig
from training.errors import ConfigurationError

Record = dict[str, Any]
SHOWN = {"step", "validation", "checkpoint", "ranks"}
"""Record kinds that are plotted."""
NOT_PLOTTED = {"step", "unix_seconds", "schema_version"}
UNITS = {"_seconds": "Seconds", "_bytes": "Bytes", "_percent": "Percent", "_per_second": "Count/Second"}
NAMESPACE = "Trainstack"
FLUSH_SECONDS = 15
"""Longest time for which events stay in memory. The supervisor uploads the files every 30 s."""
MAX_METRICS = 100
"""Limit per object in the embedded metric format
(https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html,
2026-11)."""


class Sink(Protocol):
    """A destination for metric records."""

    def take(self, record: Record) -> None:
        """Accept one record. Its numbers are finite or None."""

    def close(self) -> None:
        """Write buffered records."""


def open_sinks(settings: ObservationConfig, run_directory: Path, rank: int) -> list[Sink]:
    """Open the configured sinks on rank 0.

    Raises:
        ConfigurationError: TensorBoard is enabled but not installed. Raised on every rank.
    """
    if settings.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigurationError(
            [
                "observation.tensorboard: true: the package tensorboard is not installed; install it, or set false: "
                "metrics.jsonl has the same numbers"
            ]
        )
    if rank != 0:
        return []
    sinks: list[Sink] = []
    if settings.tensorboard:
        sinks.append(TensorBoard(run_directory / "tensorboard"))
    if settings.embedded_metrics:
        sinks.append(EmbeddedMetrics(sys.stdout, run_directory.name))
    return sinks


def numbers_of(record: Record) -> dict[str, float]:
    """Return a record's numbers for plotting, without the step, the time and unknown values."""
    if record["record"] not in SHOWN:
        return {}
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in NOT_PLOTTED
    }


class TensorBoard:
    """Writes event files for TensorBoard.

    Args:
        folder: folder for the event files; a resumed run adds to it.
    """

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), flush_secs=FLUSH_SECONDS)

    def take(self, record: Record) -> None:
        """Write a record's numbers at its step."""
        for name, value in numbers_of(record).items():
            self._writer.add_scalar(
                f"{record['record']}/{name}", value, record["step"], walltime=record["unix_seconds"]
            )

    def close(self) -> None:
        """Flush and close the files."""
        self._writer.close()


class EmbeddedMetrics:
    """Prints records in CloudWatch's embedded metric format. CloudWatch Logs extracts the metrics without a filter.

    Args:
        output: output stream that is sent to CloudWatch Logs.
        run: value for the dimension ``Run``.
    """

    def __init__(self, output: TextIO, run: str) -> None:
        self._output = output
        self._run = run

    def take(self, record: Record) -> None:
        """Print a record if it has numbers."""
        numbers = dict(list(numbers_of(record).items())[:MAX_METRICS])
        if not numbers:
            return
        directive = {
            "Namespace": NAMESPACE,
            "Dimensions": [["Run"]],
            "Metrics": [{"Name": name, "Unit": _unit(name)} for name in numbers],
        }
        document = {
            "_aws": {"Timestamp": round(record["unix_seconds"] * 1000), "CloudWatchMetrics": [directive]},
            "Run": self._run,
            "Step": record["step"],
            **numbers,
        }
        self._output.write(json.dumps(document) + "\n")
        self._output.flush()

    def close(self) -> None:
        """Do nothing, because records are not buffered."""


def _unit(name: str) -> str:
    matching = [unit for ending, unit in UNITS.items() if name.endswith(ending)]
    return matching[-1] if matching else "None"
