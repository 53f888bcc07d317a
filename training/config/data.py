"""Data settings: token dataset or custom dataset, streaming, and loader workers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from training.config.section import NEW_RUN, Section

FUNCTION_PATTERN = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
"""``package.module:function``."""


class DataConfig(Section):
    """The staged token dataset, or a custom dataset."""

    documents: Literal["joined", "apart"] = Field(
        default="joined",
        description="Token datasets only. `joined`: documents are concatenated and cut every `sequence_length` "
        "tokens. `apart`: one document per sequence, padded; the loss ignores padding.",
        json_schema_extra=NEW_RUN,
    )
    stream_cache_gib: float | None = Field(
        default=None,
        gt=0.0,
        description="Token datasets only. Stream tokens from S3 during training, with a disk cache of at most this "
        "many GiB per node. Sequences are then shuffled within groups of 64 blocks, each with a million tokens. "
        "`null`: stage the complete dataset. Changing the number only restarts the trainer.",
        json_schema_extra=NEW_RUN,
    )
    function: str | None = Field(
        default=None,
        pattern=FUNCTION_PATTERN,
        description="`package.module:function` in your code that returns a map-style dataset; `null`: use the token "
        'dataset. It is called with `split` ("train" or "validation"), `directory` (which contains the staged files) '
        "and the options.",
        json_schema_extra=NEW_RUN,
    )
    options: dict[str, Any] = Field(
        default={}, description="Additional keyword arguments for the function.", json_schema_extra=NEW_RUN
    )
    workers: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="Custom datasets only. Loader processes per trainer process; `null`: one less than each process's "
        "share of the cores, at most 8.",
    )
    prefetch_batches: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Custom datasets only. Number of batches that each worker prefetches; `null`: 2.",
    )

    @model_validator(mode="after")
    def _check_source(self) -> DataConfig:
        problems = []
        if self.function is None:
            given = [
                name for name in ("options", "workers", "prefetch_batches") if getattr(self, name) not in (None, {})
            ]
            problems += [f"{name} requires a custom dataset; set function, or remove it" for name in given]
        elif self.documents == "apart":
            problems.append("documents: apart requires a token dataset; remove it, or remove function")
        if self.stream_cache_gib is not None and (self.function is not None or self.documents == "apart"):
            problems.append(
                "stream_cache_gib requires joined documents of a token dataset; remove it, or remove "
                "documents and function"
            )
        if self.function is not None and self.workers == 0 and self.prefetch_batches is not None:
            problems.append(
                f"prefetch_batches: {self.prefetch_batches}: requires loader workers, but workers is 0; raise "
                "workers, or remove prefetch_batches"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self
