"""TrainingConfig: the validated settings for a training run.

The trainer reads them, and `stacks` validates them before a deploy, so this package must not import torch. The data
and checkpoint paths and the number of processes are command-line arguments instead.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator, model_validator

from training.config.data import DataConfig
from training.config.execution import ExecutionConfig
from training.config.model import PRESETS, ModelConfig, ModelShape
from training.config.observation import ObservationConfig
from training.config.optimization import OptimizerConfig, ScheduleConfig
from training.config.parallel import ParallelConfig
from training.config.recovery import EarlyStoppingConfig, RecoveryConfig
from training.config.renamed import RENAMED_KEYS, new_name
from training.config.section import NEW_RUN, Section
from training.errors import ConfigurationError

__all__ = [
    "PRESETS",
    "RENAMED_KEYS",
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
    "new_name",
    "read_config",
]


DEFAULT_INTERVAL_STEPS = 500
"""Steps between checkpoints in a longer run. A shorter run saves after half of its steps."""


class CheckpointConfig(Section):
    """Checkpoint interval and retention."""

    interval_steps: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        default=None,
        description="Steps between checkpoints, and thus the most work lost if a node fails without notice. "
        "`null`: 500, or half of the steps if the run has at most 500 steps. `auto`: computed from the measured cost "
        "of a save and `failure_interval_seconds`.",
    )
    interval_minutes: float | None = Field(
        default=15.0,
        gt=0.0,
        description="Maximum minutes between checkpoints, even if the run has completed fewer than "
        "`interval_steps` steps; `null`: no limit.",
    )
    failure_interval_seconds: float = Field(
        default=3600.0,
        gt=0.0,
        description="Mean time between unannounced failures, in seconds; used by `interval_steps: auto`.",
    )
    keep_last: int = Field(
        default=2,
        ge=2,
        le=10000,
        description="Number of newest valid checkpoints to keep; at least 2, in case the newest is damaged.",
    )
    keep_best: int = Field(
        default=0,
        ge=0,
        le=10000,
        description="Number of checkpoints with the lowest validation loss to keep; if greater than 0, each validation"
        " also saves a checkpoint.",
    )
    keep_every_hours: float | None = Field(
        default=None, gt=0.0, description="Also keep one checkpoint every N hours permanently; `null`: off."
    )
    verification: Literal["part", "full"] = Field(
        default="part",
        description="Data that a new run writes to the checkpoint bucket and reads back before its first step. `part`: "
        "the structure and one chunk, at most 8 MiB. `full`: all bytes of the model, which takes as long as a save and "
        "a resume, and needs host memory for a copy of the model.",
    )


class ValidationConfig(Section):
    """Validation interval and size."""

    interval_steps: int = Field(
        default=500, ge=1, description="Steps between validations; the run also validates after the last step."
    )
    batches: int = Field(
        default=8, ge=1, description="Global batches per validation; every validation uses the same sequences."
    )


class TrainingConfig(Section):
    """Settings for a training run."""

    seed: int = Field(
        default=1337,
        ge=0,
        lt=2**63,
        description="Random seed for weights, data order and dropout.",
        json_schema_extra=NEW_RUN,
    )
    steps: int = Field(
        default=1000, ge=1, description="Total optimizer steps in the run, including steps before restarts."
    )
    global_batch_size: int = Field(
        default=32,
        ge=1,
        description="Sequences per optimizer step across all processes, independent of the world size.",
    )
    micro_batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default=8,
        description="Maximum micro-batch size, in sequences per process, which limits memory use. `auto`: the largest "
        "size that fits on every GPU, measured at the first start and kept for the run; `global_batch_size` does not "
        "change.",
    )
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    parallel: ParallelConfig = ParallelConfig()
    execution: ExecutionConfig = ExecutionConfig()
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = Field(
        default="auto",
        description="`auto`: bf16 on GPUs that support it, fp16 with a gradient scaler on older GPUs, fp32 on a CPU. "
        "`tf32`: float32 tensors whose matrix products are rounded to a 10-bit mantissa.",
    )
    compile: bool = Field(
        default=False,
        description="Use torch.compile, which makes steps faster, but takes a minute or more at the first start on a "
        "node. Nodes cache the compiled kernels.",
    )
    checkpoint: CheckpointConfig = CheckpointConfig()
    validation: ValidationConfig = ValidationConfig()
    early_stopping: EarlyStoppingConfig = EarlyStoppingConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    observation: ObservationConfig = ObservationConfig()
    log_interval_steps: int = Field(
        default=1, ge=1, description="Steps between `step` records in the metrics, and between the log's lines."
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="CPU threads per process; `null`: the number of cores divided by the number of processes on the "
        "node.",
    )
    initial_weights: str | None = Field(
        default=None,
        min_length=1,
        description="Checkpoint from which a new run loads its weights, such as "
        "`s3://BUCKET/runs/FLEET/RUN/checkpoints#STEP`. STEP is a step or a tag; without `#STEP`, the newest "
        "checkpoint is used. For a GPT or Llama, also a folder with `config.json` and safetensors files in Hugging "
        "Face's layout. `null`: random initialization. No other state is loaded.",
    )
    determinism: bool = Field(
        default=False,
        description="Use only deterministic GPU kernels, which are slower but make resumed runs bit-identical. "
        "Resumed runs on CPUs are always bit-identical.",
    )
    entrypoint: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*\.py$",
        description="Script in your code that replaces the built-in trainer, such as `train.py`; `null`: use the "
        "built-in trainer.",
    )
    arguments: list[str] = Field(default=[], description="Command-line arguments for the entrypoint.")

    @model_validator(mode="after")
    def _check_entrypoint(self) -> TrainingConfig:
        if self.entrypoint is None:
            if self.arguments:
                raise ValueError("arguments requires an entrypoint; set entrypoint, or remove arguments")
            return self
        others = [
            name
            for name, field in type(self).model_fields.items()
            if name not in ("entrypoint", "arguments") and getattr(self, name) != field.default
        ]
        if others:
            raise ValueError(
                f"{', '.join(others)}: not used with entrypoint {self.entrypoint!r}; pass it in arguments, or remove it"
            )
        return self

    @model_validator(mode="after")
    def _check_activation_checkpointing(self) -> TrainingConfig:
        if self.execution.activation_checkpointing and self.model.function is not None:
            raise ValueError(
                f"execution.activation_checkpointing: not supported with model.function {self.model.function!r}; "
                "remove it, and use torch.utils.checkpoint in the model"
            )
        return self

    @field_validator("micro_batch_size")
    @classmethod
    def _check_micro_batch_size(cls, micro: int | str, info: ValidationInfo) -> int | str:
        global_size = info.data.get("global_batch_size")
        if isinstance(micro, int) and global_size is not None and micro > global_size:
            raise ValueError(f"greater than global_batch_size {global_size}; lower it, or raise global_batch_size")
        return micro

    @field_validator("schedule")
    @classmethod
    def _check_schedule(cls, schedule: ScheduleConfig, info: ValidationInfo) -> ScheduleConfig:
        steps = info.data.get("steps")
        if steps is not None and schedule.warmup_steps is not None and schedule.warmup_steps >= steps:
            raise ValueError(
                f"warmup_steps {schedule.warmup_steps} must be less than steps {steps} to reach the peak learning "
                "rate; lower it, or raise steps"
            )
        if steps is not None and schedule.kind == "wsd" and (schedule.decay_steps or 1) > steps:
            raise ValueError(f"decay_steps {schedule.decay_steps} exceeds steps {steps}; lower it, or raise steps")
        return schedule

    @property
    def warmup_steps(self) -> int:
        """Number of warm-up steps. The default is at most a tenth of the run, or three tenths with onecycle."""
        if self.schedule.warmup_steps is not None:
            return self.schedule.warmup_steps
        return self.steps * 3 // 10 if self.schedule.kind == "onecycle" else min(100, self.steps // 10)

    @property
    def min_micro_batch_size(self) -> int:
        """Micro-batch size, or 1 for auto, because at least one sequence must fit."""
        return 1 if self.micro_batch_size == "auto" else self.micro_batch_size

    @property
    def checkpoint_interval_steps(self) -> int | None:
        """Steps between checkpoints, or None if the interval is automatic."""
        if self.checkpoint.interval_steps == "auto":
            return None
        default = DEFAULT_INTERVAL_STEPS if self.steps > DEFAULT_INTERVAL_STEPS else (self.steps + 1) // 2
        return self.checkpoint.interval_steps or default

    def describe_checkpoint_interval(self) -> str:
        """Return a description of this run's checkpoint schedule."""
        if self.entrypoint is not None:
            return f"saved by {self.entrypoint}"
        steps, minutes = self.checkpoint_interval_steps, self.checkpoint.interval_minutes
        rules = [] if minutes is None else [f"every {minutes:g} minutes"]
        if steps is None:
            rules.append("at the interval computed from the cost of a save")
        elif steps < self.steps:
            rules.append(f"every {steps} of {self.steps} steps")
        if len(rules) > 1:
            rules = [f"{' or '.join(rules)}, whichever is first"]
        return ", and ".join([*rules, "at the end"])

    @property
    def decay_steps(self) -> int:
        """Number of decay steps in a wsd schedule."""
        return self.schedule.decay_steps or max(1, self.steps // 5)

    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON (sorted keys, no spaces), 64 hex digits."""
        document = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(document.encode()).hexdigest()

    def problems_at(self, world_size: int) -> list[str]:
        """Return a message for each problem that this config has with the given number of processes."""
        if self.global_batch_size < world_size:
            return [
                f"global_batch_size: {self.global_batch_size} is less than the {world_size} processes; each process "
                "needs at least one sequence per step, so raise it or use fewer processes"
            ]
        return []


def describe_problems(error: ValidationError, prefix: str = "") -> list[str]:
    """Return every problem in a pydantic error as a message, ``path: value: rule``.

    Args:
        error: the error raised by ``TrainingConfig.model_validate``.
        prefix: the config's path in an enclosing document, such as ``training``.
    """
    messages = []
    for problem in error.errors(include_url=False):
        path = ".".join([part for part in (prefix, *map(str, problem["loc"])) if part]) or "the document"
        if problem["type"] == "extra_forbidden":
            renamed = new_name(problem["loc"])
            owner = _section_at(problem["loc"][:-1])
            known = f"; known keys: {', '.join(owner.model_fields)}" if owner else ""
            rule = f"renamed to {renamed}" if renamed else f"unknown key; remove it or correct its spelling{known}"
            messages.append(f"{path}: {rule}")
        elif isinstance(problem["input"], (dict, BaseModel)):
            messages.append(f"{path}: {problem['msg'].removeprefix('Value error, ')}")
        else:
            value = json.dumps(problem["input"], default=repr)
            messages.append(f"{path}: {value}: {problem['msg'].removeprefix('Value error, ')}")
    return messages


def _section_at(location: tuple[int | str, ...]) -> type[BaseModel] | None:
    section: type[BaseModel] = TrainingConfig
    for part in location:
        field = section.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return None
        section = field.annotation
    return section


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        names = [name for name, _ in pairs]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        raise ConfigurationError([f"{name}: duplicate key; remove one" for name in duplicates])
    return document


def read_config(path: Path) -> TrainingConfig:
    """Read and validate a JSON config file.

    Raises:
        ConfigurationError: The file cannot be read, is not JSON, or is invalid. The error lists all problems.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_reject_duplicate_keys)
    except OSError as error:
        raise ConfigurationError([f"{path}: cannot read ({error.strerror}); specify a JSON file"]) from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError([f"{path}: not JSON ({error}); correct it"]) from error
    try:
        return TrainingConfig.model_validate(document)
    except ValidationError as error:
        raise ConfigurationError([f"{path}: {problem}" for problem in describe_problems(error)]) from error
