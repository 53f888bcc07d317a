"""A training job: its config, and the paths given on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from training.config import TrainingConfig


@dataclass(frozen=True)
class Job:
    """The options of the `train` command, with the parsed config.

    Attributes:
        config: training config.
        dataset: dataset directory.
        checkpoints: URL of the checkpoint store.
        run_directory: directory for stop and save requests, outcomes and metrics.
        generation: the gang's generation number.
        dataset_url: URL from which the dataset was staged or is streamed; None if not given.
        joins: True if this node joins a running gang, and receives its state from the gang.
    """

    config: TrainingConfig
    dataset: Path
    checkpoints: str
    run_directory: Path
    generation: int
    dataset_url: str | None = None
    joins: bool = False
