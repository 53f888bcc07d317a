"""Additional sinks for metric records: TensorBoard, CloudWatch through standard output, and experiment trackers."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Protocol, TextIO

from training.config.observation import ObservationConfig
from training.errors import ConfigurationError
from training.observe.numbers import Record, numbers_of
from training.observe.trackers import MLflow, WeightsAndBiases

PACKAGES = ("tensorboard", "wandb", "mlflow")
"""Modules of the sinks, which are also the names of their settings."""
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
        ConfigurationError: The package of an enabled sink is not installed. Raised on every rank.
    """
    missing = [name for name in PACKAGES if getattr(settings, name) and importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            [
                f"observation.{name}: true: the package {name} is not installed; install it, or set false: "
                "metrics.jsonl has the same numbers"
                for name in missing
            ]
        )
    if rank != 0:
        return []
    sinks: list[Sink] = []
    if settings.tensorboard:
        sinks.append(TensorBoard(run_directory / "tensorboard"))
    if settings.embedded_metrics:
        sinks.append(EmbeddedMetrics(sys.stdout, run_directory.name))
    if settings.wandb:
        sinks.append(WeightsAndBiases(run_directory))
    if settings.mlflow:
        sinks.append(MLflow(run_directory))
    return sinks


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
