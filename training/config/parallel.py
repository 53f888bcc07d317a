"""Data-parallelism settings: gradient exchange and the network test."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from training.config.section import Section


class ParallelConfig(Section):
    """Data parallelism: each process has a replica of the model, and gradients are averaged."""

    bucket_mib: float = Field(
        default=25.0,
        gt=0.0,
        le=4096.0,
        description="DDP gradient bucket size in MiB; larger buckets use the network better, but smaller buckets are "
        "sent sooner.",
    )
    gradient_compression: Literal["none", "bf16", "fp16"] = Field(
        default="none",
        description="Gradient format on the network; the 16-bit formats halve the traffic but round gradients.",
    )
    static_graph: bool = Field(
        default=False,
        description="Assume that every step uses the same parameters in the same order; this reduces DDP's overhead.",
    )
    find_unused_parameters: bool = Field(
        default=False,
        description="At each step, find the parameters that the loss does not depend on. Models with branches require "
        "this.",
    )

    reform: bool = Field(
        default=False,
        description="If a node leaves, dies or joins, the other nodes continue from memory, without a restart. Each "
        "step then has one more all-reduce, of two numbers. Not supported with precision fp16. With `compile`, "
        "this works only if no batch has a new shape; otherwise, the nodes restart from the newest checkpoint.",
    )
    network_test: Literal["off", "report", "require"] = Field(
        default="off",
        description="Time an all-reduce across all processes before the first step. `report`: write its bus bandwidth "
        "to the metrics, and log a warning if it is far below the instance type's network bandwidth. `require`: fail "
        "in that case.",
    )

    @model_validator(mode="after")
    def _check_graph_settings(self) -> ParallelConfig:
        if self.static_graph and self.find_unused_parameters:
            raise ValueError(
                "static_graph assumes that every parameter is used, but find_unused_parameters does not; remove one"
            )
        return self
