"""How the hardware is used: nothing here changes what is computed but for rounding."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from training.settings_section import Section


class ExecutionConfig(Section):
    """How the hardware is used."""

    attention: Literal["auto", "flash", "memory_efficient", "cudnn", "math"] = Field(
        default="auto",
        description="Kernel of the attention; auto: torch's choice, which the metrics name. One that cannot work here "
        "is refused at the start.",
    )
    activation_checkpointing: bool = Field(
        default=False,
        description="Keep only what goes into each block, and compute the rest again for the backward pass: a third "
        "more arithmetic, and memory for far larger micro-batches.",
    )
    garbage_collection_interval_steps: int | None = Field(
        default=1000,
        ge=1,
        description="Steps between collections of Python's reference cycles, on all ranks at the same step, so that "
        "none waits for another's; null: whenever Python likes.",
    )
    gpu_memory_share: float | None = Field(
        default=None, gt=0.0, le=1.0, description="Most of the GPU's memory that a process may take; null: all."
    )
