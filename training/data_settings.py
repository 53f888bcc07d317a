"""Where samples come from, and how they are brought to the model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from training.settings_section import Section

FUNCTION_PATTERN = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
"""``package.module:function``."""


class DataConfig(Section):
    """Tokens of the staged dataset, or a dataset of your own."""

    documents: Literal["joined", "apart"] = Field(
        default="joined",
        description="Of tokens: joined and cut every context tokens, or each document apart, padded, and its padding "
        "not counted in the loss.",
    )
    stream_cache_gib: float | None = Field(
        default=None,
        gt=0.0,
        description="Of tokens: read them from S3 while training goes on, with at most so many GiB of the node's disk; "
        "windows are then shuffled within groups of 64 blocks of a million tokens. null: the whole dataset is staged.",
    )
    function: str | None = Field(
        default=None,
        pattern=FUNCTION_PATTERN,
        description="`package.module:function` of your code that returns a map-style dataset; null: tokens. It is "
        'called with split ("train", "validation"), directory (of the staged files) and the options.',
    )
    options: dict[str, Any] = Field(default={}, description="Further keyword arguments of the function.")
    workers: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="Of your own dataset: processes that fetch samples, per trainer process; null: one less than the "
        "cores for each, at most 8.",
    )
    prefetch_batches: int | None = Field(
        default=None, ge=1, le=1024, description="Of your own dataset: batches each worker is ahead; null: 2."
    )

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        problems = []
        if self.function is None:
            given = [
                name for name in ("options", "workers", "prefetch_batches") if getattr(self, name) not in (None, {})
            ]
            problems += [f"{name} is for a dataset of your own; give its function too, or drop it" for name in given]
        elif self.documents == "apart":
            problems.append("documents: apart is for tokens; your own dataset decides what a sample is, so drop it")
        if self.stream_cache_gib is not None and (self.function is not None or self.documents == "apart"):
            problems.append("stream_cache_gib is for joined tokens; drop it, or documents and function")
        if self.function is not None and self.workers == 0 and self.prefetch_batches is not None:
            problems.append(
                f"prefetch_batches: {self.prefetch_batches}: only workers fetch ahead, and workers is 0; raise "
                "workers, or drop prefetch_batches"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self
