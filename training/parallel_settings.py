"""How processes exchange gradients."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from training.settings_section import Section


class ParallelConfig(Section):
    """Data parallelism: every process holds the whole model, and their gradients are averaged."""

    bucket_mib: float = Field(
        default=25.0,
        gt=0.0,
        le=4096.0,
        description="MiB of gradients that are exchanged at once; larger ones use the network better, smaller ones "
        "begin sooner.",
    )
    gradient_compression: Literal["none", "bf16", "fp16"] = Field(
        default="none",
        description="Format in which gradients travel between processes; the 16-bit ones halve the traffic and round.",
    )
    static_graph: bool = Field(
        default=False,
        description="Say that each step uses the same parameters in the same order, which saves looking for it.",
    )
    find_unused_parameters: bool = Field(
        default=False,
        description="Look, at every step, for parameters that the loss does not depend on: for models with branches.",
    )

    network_test: Literal["off", "report", "require"] = Field(
        default="off",
        description="All-reduce over all processes before the first step, timed. report: its bus bandwidth goes to the "
        "metrics, and to the log when it is far below what the instance type's network gives; require: then the run "
        "fails.",
    )

    @model_validator(mode="after")
    def _a_static_graph_has_no_branches(self) -> ParallelConfig:
        if self.static_graph and self.find_unused_parameters:
            raise ValueError(
                "static_graph says that no parameter goes unused and find_unused_parameters looks for some; drop one"
            )
        return self
