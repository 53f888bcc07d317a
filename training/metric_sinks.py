"""Where a run's records go besides its metrics file: TensorBoard, and CloudWatch by way of standard output."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, Protocol, TextIO

from training.errors import ConfigurationError
from training.observation_settings import ObservationConfig

Record = dict[str, Any]
SHOWN = {"step", "validation", "checkpoint", "ranks"}
"""Records whose numbers are curves."""
UNITS = {"_seconds": "Seconds", "_bytes": "Bytes", "_percent": "Percent", "_per_second": "Count/Second"}
NAMESPACE = "Trainstack"
MOST_METRICS = 100
"""Of one object in the embedded metric format
(https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html,
2026-11)."""


class Sink(Protocol):
    """Takes records."""

    def take(self, record: Record) -> None:
        """Take in one record; its numbers are finite or None."""

    def close(self) -> None:
        """Write what is still held."""


def open_sinks(settings: ObservationConfig, run_directory: Path, rank: int) -> list[Sink]:
    """Open what the config asks for, on rank 0.

    Raises:
        ConfigurationError: TensorBoard is asked for and not installed; on every rank.
    """
    if settings.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigurationError(
            [
                "observation.tensorboard: true, and the package tensorboard is not installed in this Python; install "
                "it, or set false: metrics.jsonl has the same numbers"
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
    """The numbers of a record that make a curve: not its step, its clock, or what is not known."""
    if record["record"] not in SHOWN:
        return {}
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in ("step", "unix_seconds")
    }


class TensorBoard:
    """Event files for TensorBoard.

    Args:
        folder: for them; a resumed run adds to it.
    """

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def take(self, record: Record) -> None:
        """Add the record's numbers at its step."""
        for name, value in numbers_of(record).items():
            self._writer.add_scalar(
                f"{record['record']}/{name}", value, record["step"], walltime=record["unix_seconds"]
            )

    def close(self) -> None:
        """Flush the files."""
        self._writer.close()


class EmbeddedMetrics:
    """Lines of CloudWatch's embedded metric format: CloudWatch Logs makes metrics of them without a call or a filter.

    Args:
        output: that ends up in CloudWatch Logs.
        run: value of the dimension ``Run``.
    """

    def __init__(self, output: TextIO, run: str) -> None:
        self._output = output
        self._run = run

    def take(self, record: Record) -> None:
        """Print the record, if it has numbers."""
        numbers = dict(list(numbers_of(record).items())[:MOST_METRICS])
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
        """Nothing is held."""


def _unit(name: str) -> str:
    matching = [unit for ending, unit in UNITS.items() if name.endswith(ending)]
    return matching[-1] if matching else "None"
