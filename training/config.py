"""TrainingConfig: everything that says what is trained, as one validated document.

It is read by the trainer and, to fail early, by whoever writes the run document; so it imports no torch. It does not
say where data, checkpoints or processes are: those are the command line's.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator, model_validator

from training.data_settings import DataConfig
from training.errors import ConfigurationError
from training.execution_settings import ExecutionConfig
from training.model_settings import PRESETS, ModelConfig, ModelShape
from training.observation_settings import ObservationConfig
from training.optimization_settings import OptimizerConfig, ScheduleConfig
from training.parallel_settings import ParallelConfig
from training.recovery_settings import EarlyStoppingConfig, RecoveryConfig
from training.settings_section import Section

__all__ = [
    "PRESETS",
    "CheckpointConfig",
    "DataConfig",
    "EarlyStoppingConfig",
    "ExecutionConfig",
    "ModelConfig",
    "ModelShape",
    "ObservationConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "RecoveryConfig",
    "ScheduleConfig",
    "TrainingConfig",
    "ValidationConfig",
    "describe_problems",
    "read_config",
]


class CheckpointConfig(Section):
    """When the run is saved, and how much of it is kept."""

    interval_steps: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default=500,
        description="Steps between checkpoints: what is lost when a node vanishes without notice. auto: as many "
        "as pay, by the measured cost of a save and failure_interval_seconds.",
    )
    failure_interval_seconds: float = Field(
        default=3600.0,
        gt=0.0,
        description="Mean time between ends without notice, by which `auto` weighs saves against lost work.",
    )
    keep_last: int = Field(
        default=2,
        ge=2,
        le=10000,
        description="Newest valid checkpoints kept; at least 2, so that a damaged newest has a predecessor.",
    )
    keep_best: int = Field(
        default=0,
        ge=0,
        le=10000,
        description="Checkpoints with the lowest validation loss kept besides; more than 0 also saves at validations.",
    )
    keep_every_hours: float | None = Field(
        default=None, gt=0.0, description="Hours between further checkpoints that are kept for good; null: none are."
    )


class ValidationConfig(Section):
    """When and on how much the validation loss is measured."""

    interval_steps: int = Field(
        default=500, ge=1, description="Steps between validations; the last step always has one."
    )
    batches: int = Field(
        default=8, ge=1, description="Global batches of validation sequences per validation (always the same ones)."
    )


class TrainingConfig(Section):
    """What is trained: model, batch, optimizer, schedule, precision, and the intervals of everything else."""

    seed: int = Field(default=1337, ge=0, lt=2**63, description="Decides initial weights, data order and dropout.")
    steps: int = Field(default=1000, ge=1, description="Optimizer steps of the whole run, over all its interruptions.")
    global_batch_sequences: int = Field(
        default=32, ge=1, description="Sequences per optimizer step over all processes; the same at any world size."
    )
    micro_batch_sequences: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default=8,
        description="Most sequences a process puts through the model at once: bounds memory. auto: as many as fit on "
        "every GPU, found by trying at the first start and kept for the run; the global batch stays as it is.",
    )
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    parallel: ParallelConfig = ParallelConfig()
    execution: ExecutionConfig = ExecutionConfig()
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = Field(
        default="auto",
        description="auto: bf16 on a GPU that has it, fp16 with a gradient scaler on an older one, fp32 on a CPU. "
        "tf32: float32 tensors, whose products are rounded to 10 bits.",
    )
    compile: bool = Field(
        default=False,
        description="torch.compile: faster steps, but a minute or more at the first start on a node; what was compiled "
        "is kept there for the next.",
    )
    checkpoint: CheckpointConfig = CheckpointConfig()
    validation: ValidationConfig = ValidationConfig()
    early_stopping: EarlyStoppingConfig = EarlyStoppingConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    observation: ObservationConfig = ObservationConfig()
    log_interval_steps: int = Field(default=1, ge=1, description="Steps between `step` records in the metrics.")
    threads: int | None = Field(
        default=None, ge=1, le=4096, description="CPU threads per process; null: cores over processes of this node."
    )
    initial_weights: str | None = Field(
        default=None,
        min_length=1,
        description="Checkpoint whose weights a new run begins with, such as s3://BUCKET/runs/RUN#STEP (a step or a "
        "tag; without # the newest one); null: random ones. Only the weights are taken, and only at the beginning.",
    )
    determinism: bool = Field(
        default=False,
        description="Only deterministic GPU kernels, so that a resumed run has the same bits; slower. CPUs always do.",
    )
    entrypoint: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*\.py$",
        description="Script of your code that does all of the training itself, such as `train.py`; null: this trainer.",
    )
    arguments: list[str] = Field(default=[], description="Command line of the entrypoint.")

    @model_validator(mode="after")
    def _one_who_trains(self) -> TrainingConfig:
        if self.entrypoint is None:
            if self.arguments:
                raise ValueError("arguments are for an entrypoint; give it too, or drop them")
            return self
        others = [
            name
            for name, field in type(self).model_fields.items()
            if name not in ("entrypoint", "arguments") and getattr(self, name) != field.default
        ]
        if others:
            raise ValueError(
                f"{', '.join(others)}: entrypoint {self.entrypoint!r} decides that; give it in arguments, or drop it"
            )
        return self

    @model_validator(mode="after")
    def _blocks_are_ours_to_recompute(self) -> TrainingConfig:
        if self.execution.activation_checkpointing and self.model.function is not None:
            raise ValueError(
                f"execution.activation_checkpointing: model.function {self.model.function!r} decides that itself "
                "(torch.utils.checkpoint); drop it"
            )
        return self

    @field_validator("micro_batch_sequences")
    @classmethod
    def _micro_batch_fits_global(cls, micro: int | str, info: ValidationInfo) -> int | str:
        whole = info.data.get("global_batch_sequences")
        if isinstance(micro, int) and whole is not None and micro > whole:
            raise ValueError(f"more than global_batch_sequences {whole}; lower it, or raise the global batch")
        return micro

    @field_validator("schedule")
    @classmethod
    def _warmup_ends_in_time(cls, schedule: ScheduleConfig, info: ValidationInfo) -> ScheduleConfig:
        steps = info.data.get("steps")
        if steps is not None and schedule.warmup_steps is not None and schedule.warmup_steps >= steps:
            raise ValueError(
                f"warmup_steps {schedule.warmup_steps} must be less than steps {steps}, or the peak learning rate is "
                "never reached; lower it, or raise steps"
            )
        if steps is not None and schedule.kind == "wsd" and (schedule.decay_steps or 1) > steps:
            raise ValueError(f"decay_steps {schedule.decay_steps} is more than steps {steps}; lower it, or raise steps")
        return schedule

    @property
    def warmup_steps(self) -> int:
        """Steps of warm-up; the default is at most a tenth of the run, so that a short run is not all warm-up."""
        if self.schedule.warmup_steps is not None:
            return self.schedule.warmup_steps
        return self.steps * 3 // 10 if self.schedule.kind == "onecycle" else min(100, self.steps // 10)

    @property
    def least_micro_batch_sequences(self) -> int:
        """The micro-batch as it was given; where it is found by trying, one sequence, since at least that must fit."""
        return 1 if self.micro_batch_sequences == "auto" else self.micro_batch_sequences

    @property
    def decay_steps(self) -> int:
        """Steps of the decay of a wsd schedule."""
        return self.schedule.decay_steps or max(1, self.steps // 5)

    def digest(self) -> str:
        """SHA-256 over the canonical JSON (sorted keys, no spaces), 64 hex digits."""
        document = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(document.encode()).hexdigest()

    def problems_at(self, world_size: int) -> list[str]:
        """What cannot work with this many processes, in words; empty when all is well."""
        if self.global_batch_sequences < world_size:
            return [
                f"global_batch_sequences: {self.global_batch_sequences} is less than the {world_size} processes; each "
                "needs at least one sequence a step, so raise it or use fewer processes"
            ]
        return []


def describe_problems(error: ValidationError, prefix: str = "") -> list[str]:
    """Every problem of a pydantic error as ``path: value: rule``, one sentence each.

    Args:
        error: what ``TrainingConfig.model_validate`` raised.
        prefix: path of the config inside a larger document, such as ``training``.
    """
    sentences = []
    for problem in error.errors(include_url=False):
        path = ".".join([part for part in (prefix, *map(str, problem["loc"])) if part]) or "the document"
        if problem["type"] == "extra_forbidden":
            owner = _section_at(problem["loc"][:-1])
            known = f"; known here: {', '.join(owner.model_fields)}" if owner else ""
            sentences.append(f"{path}: no such setting; remove it or correct its spelling{known}")
        elif isinstance(problem["input"], (dict, BaseModel)):
            sentences.append(f"{path}: {problem['msg'].removeprefix('Value error, ')}")
        else:
            shown = json.dumps(problem["input"], default=repr)
            sentences.append(f"{path}: {shown}: {problem['msg'].removeprefix('Value error, ')}")
    return sentences


def _section_at(location: tuple[int | str, ...]) -> type[BaseModel] | None:
    section: type[BaseModel] = TrainingConfig
    for part in location:
        field = section.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return None
        section = field.annotation
    return section


def _refuse_doubled_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = sorted({name for name in names if names.count(name) > 1})
        raise ConfigurationError([f"{name}: given twice; keep one" for name in doubled])
    return document


def read_config(path: Path) -> TrainingConfig:
    """Read and validate a JSON config file.

    Raises:
        ConfigurationError: the file is missing, is not JSON, or does not validate; all problems at once.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_refuse_doubled_keys)
    except OSError as error:
        raise ConfigurationError(
            [f"{path}: cannot be read ({error.strerror}); give the path of a JSON file"]
        ) from error
    except ValueError as error:
        raise ConfigurationError([f"{path}: is not JSON ({error}); correct it"]) from error
    try:
        return TrainingConfig.model_validate(document)
    except ValidationError as error:
        raise ConfigurationError([f"{path}: {problem}" for problem in describe_problems(error)]) from error
