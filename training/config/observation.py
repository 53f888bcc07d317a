"""Observation settings: metric outputs, rank reports and profiler traces."""

from __future__ import annotations

from pydantic import Field

from training.config.section import Section


class ProfileConfig(Section):
    """Periodic torch profiler traces, each of a few steps on rank 0."""

    steps: int = Field(
        default=0,
        ge=0,
        le=20,
        description="Steps per trace; `0`: no traces. Each step adds megabytes to gigabytes to a trace.",
    )
    first_step: int = Field(
        default=20,
        ge=1,
        description="Number of steps before the first trace, to allow for compilation.",
    )
    interval_steps: int | None = Field(
        default=None,
        ge=1,
        description="Steps between the starts of traces; `null`: one trace per start of the run.",
    )
    keep: int = Field(default=3, ge=1, description="Number of newest traces to keep in the run directory.")
    max_mib: int = Field(default=512, ge=1, description="Maximum trace size in MiB; larger traces are removed.")


class ObservationConfig(Section):
    """Outputs that a run writes in addition to its metrics file."""

    tensorboard: bool = Field(
        default=False,
        description="Also write TensorBoard metrics to tensorboard/ in the run directory; requires the tensorboard "
        "package.",
    )
    wandb: bool = Field(
        default=False,
        description="Also write an offline Weights & Biases run to wandb/ in the run directory, which `wandb sync` "
        "uploads; requires the wandb package.",
    )
    mlflow: bool = Field(
        default=False,
        description="Also write an MLflow file store to mlruns/ in the run directory; requires the mlflow-skinny or "
        "mlflow package.",
    )
    embedded_metrics: bool = Field(
        default=False,
        description="Print metrics in CloudWatch's embedded metric format. For trainers that run outside these "
        "stacks and write to CloudWatch Logs; the stacks' own nodes do not need it.",
    )
    rank_report_interval_steps: int = Field(
        default=100,
        ge=1,
        description="Steps between `ranks` records, which compare compute time and GPU health across ranks and name "
        "the slowest rank.",
    )
    profile: ProfileConfig = ProfileConfig()
