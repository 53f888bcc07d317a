"""Sinks for experiment trackers, which write files for a later upload: nodes do not have internet access.

Sources (2026-11): https://docs.wandb.ai/models/support/run_wandb_offline (offline runs, ``wandb sync``) and
https://mlflow.org/docs/latest/self-hosting/architecture/backend-store (file store).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from training.observe.numbers import Record, numbers_of

PROJECT = "trainstack"
"""Project in Weights & Biases, and experiment in MLflow."""
WANDB_FOLDER, MLFLOW_FOLDER = "wandb", "mlruns"
"""Folders in the run directory. The supervisor uploads their files while the run trains."""
ALLOW_FILE_STORE = "MLFLOW_ALLOW_FILE_STORE"
"""MLflow 3.13 and later refuse the file store without this variable
(https://github.com/mlflow/mlflow/pull/23637, 2026-11). SQLite, which MLflow recommends, is not an alternative: its file
cannot be copied consistently while the run writes it."""


class WeightsAndBiases:
    """Writes an offline run for ``wandb sync``. Its process sends nothing, and writes blocks of 32 KiB.

    Args:
        run_directory: folder for the files; its name is the name of the run.
    """

    def __init__(self, run_directory: Path) -> None:
        import wandb

        self._run: Any = wandb.init(
            mode="offline",
            project=PROJECT,
            name=run_directory.name,
            dir=str(run_directory),
            settings=wandb.Settings(
                console="off",  # the supervisor already collects the output
                silent=True,
                disable_git=True,
                save_code=False,
                disable_job_creation=True,
                x_disable_meta=True,
                x_disable_stats=True,  # the records have the figures of the GPU
                x_disable_machine_info=True,
            ),
        )
        self._teardown = wandb.teardown
        # A run that rolls back reports smaller steps, which wandb would drop as its own step.
        self._run.define_metric("*", step_metric="step")

    def take(self, record: Record) -> None:
        """Write a record's numbers with its step."""
        numbers = numbers_of(record)
        if numbers:
            named = {f"{record['record']}/{name}": value for name, value in numbers.items()}
            self._run.log({**named, "step": record["step"]})

    def close(self) -> None:
        """Write the rest, and end the library's process."""
        self._run.finish()
        # The last block reaches the file after `finish` has returned. `teardown` waits until the process has ended.
        # Source: `wandb/sdk/wandb_setup.py` (0.31.0, 2026-11).
        self._teardown()


class MLflow:
    """Writes to a file store.

    Args:
        run_directory: folder for the files; its name is the name of the run.
    """

    def __init__(self, run_directory: Path) -> None:
        os.environ.setdefault(ALLOW_FILE_STORE, "true")
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client: Any = MlflowClient((run_directory / MLFLOW_FOLDER).resolve().as_uri())
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = self._client.create_experiment(PROJECT) if found is None else found.experiment_id
        self._run_id: str = self._client.create_run(experiment, run_name=run_directory.name).info.run_id

    def take(self, record: Record) -> None:
        """Write a record's numbers with its step and time."""
        milliseconds = round(record["unix_seconds"] * 1000)
        metrics = [
            self._metric(f"{record['record']}/{name}", value, milliseconds, record["step"])
            for name, value in numbers_of(record).items()
        ]
        if metrics:
            self._client.log_batch(self._run_id, metrics)

    def close(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._run_id)
