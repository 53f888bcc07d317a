"""The model as the loop calls it: replicated over the processes, whose gradients are averaged when the loop says so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from training.distributed import Gang
from training.parallel_settings import ParallelConfig
from training.stopwatch import Laps

Exchange = Callable[[Any, Any], "torch.futures.Future[Tensor]"]
EXCHANGES: dict[str, Exchange] = {
    "none": default_hooks.allreduce_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "fp16": default_hooks.fp16_compress_hook,
}


class Replica:
    """One process's copy of a model. A gang of one exchanges nothing, and has nothing in the way.

    Args:
        model: that returns a loss; bare or compiled.
        gang: whose processes hold copies.
        settings: of the exchange.

    Attributes:
        laps: told when a bucket of gradients is ready; None if nobody measures.
    """

    def __init__(self, model: nn.Module, gang: Gang, settings: ParallelConfig) -> None:
        self._model = model
        self.laps: Laps | None = None
        self._replicated: DistributedDataParallel | None = None
        if gang.world_size == 1:
            return
        self._replicated = DistributedDataParallel(
            model,
            device_ids=[gang.device.index] if gang.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            bucket_cap_mb=settings.bucket_mib,
            static_graph=settings.static_graph,
            find_unused_parameters=settings.find_unused_parameters,
        )
        exchange = EXCHANGES[settings.gradient_compression]

        # DDP compares annotations with its own types, and ours are strings.
        def timed(group, bucket):  # type: ignore[no-untyped-def]
            if self.laps is not None:
                self.laps.bucket_is_ready()
            return exchange(group, bucket)

        self._replicated.register_comm_hook(None, timed)

    def __call__(self, *batch: Tensor) -> Tensor:
        """Loss of a batch on this process."""
        return cast(Tensor, (self._replicated or self._model)(*batch))

    def exchanging(self, yes: bool) -> contextlib.AbstractContextManager[None]:
        """Context of a forward and backward pass, after which gradients are averaged over the processes, or are not."""
        if yes or self._replicated is None:
            return contextlib.nullcontext()
        return cast("contextlib.AbstractContextManager[None]", self._replicated.no_sync())
