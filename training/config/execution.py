"""Execution settings: how the trainer uses the hardware. They affect results only through rounding."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from training.config.section import Section


class ExecutionConfig(Section):
    """Attention kernel, activation checkpointing, garbage collection and GPU memory limit."""

    attention: Literal["auto", "flash", "memory_efficient", "cudnn", "math"] = Field(
        default="auto",
        description="Attention kernel. `auto`: torch chooses one, and the `start` record names it. The trainer fails "
        "at startup if the hardware does not support the kernel.",
    )
    activation_checkpointing: bool = Field(
        default=False,
        description="Keep only each block's input, and recompute activations in the backward pass. This requires "
        "a third more computation, but allows much larger micro-batches.",
    )
    garbage_collection_interval_steps: int | None = Field(
        default=1000,
        ge=1,
        description="Steps between Python garbage collections. All ranks collect garbage at the same step, so that "
        "they do not wait for each other. `null`: Python collects garbage automatically.",
    )
    gpu_memory_share: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="Maximum share of the GPU memory that a process may use; `null`: all of it.",
    )
