"""What is written about a run besides its metrics file."""

from __future__ import annotations

from pydantic import Field

from training.settings_section import Section


class ProfileConfig(Section):
    """A torch profiler trace of a few steps, now and then, of rank 0."""

    steps: int = Field(
        default=0, ge=0, le=20, description="Steps in a trace; 0: no profiler. Each takes megabytes to gigabytes."
    )
    first_step: int = Field(default=20, ge=1, description="Step before which the first trace begins: past the warm-up.")
    interval_steps: int | None = Field(
        default=None, ge=1, description="Steps between the beginnings of traces; null: one trace in the run's start."
    )
    keep: int = Field(default=3, ge=1, description="Newest traces kept in the run directory.")
    most_mib: int = Field(
        default=512, ge=1, description="MiB that one trace may have on disk; larger ones are removed."
    )


class ObservationConfig(Section):
    """What is written about a run besides its metrics file."""

    tensorboard: bool = Field(
        default=False,
        description="Write the metrics for TensorBoard too, to tensorboard/ in the run directory; needs its package.",
    )
    embedded_metrics: bool = Field(
        default=False,
        description="Print the metrics in CloudWatch's embedded metric format: for trainers outside of these stacks "
        "whose output goes to CloudWatch Logs. Nodes of the stacks need it not.",
    )
    rank_report_interval_steps: int = Field(
        default=100,
        ge=1,
        description="Steps between comparisons of how long each rank computes, and what its GPU reports; names the "
        "slowest.",
    )
    profile: ProfileConfig = ProfileConfig()
