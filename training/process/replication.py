"""Data-parallel replication of the model: DDP, the gradient exchange, and the priming of DDP before the first step."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from training.config.parallel import ParallelConfig
from training.errors import ConfigurationError, TrainingError
from training.process.batch import Batch
from training.process.buffers import is_exchanged, is_writable, preserved_state
from training.process.distributed import Gang
from training.process.precision import Precision
from training.process.stopwatch import Laps

Exchange = Callable[[Any, Any], "torch.futures.Future[Tensor]"]
EXCHANGES: dict[str, Exchange] = {
    "none": default_hooks.allreduce_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "fp16": default_hooks.fp16_compress_hook,
}
PRIMING_PASSES = 2
"""Number of forward and backward passes before the first step. After the first pass, DDP rebuilds its buckets, which
changes the order in which it adds the gradients of three or more ranks. Without priming, a resumed run would differ
from an uninterrupted run."""
SHOWN_PARAMETERS = 5


class Replica:
    """This process's copy of the model. With only one process, the bare model runs without DDP.

    Args:
        model: module that returns a loss; may be compiled.
        gang: the processes that have copies of the model.
        settings: gradient exchange settings.

    Attributes:
        laps: stopwatch to notify when a gradient bucket is ready; None if step times are not measured.
    """

    def __init__(self, model: nn.Module, gang: Gang, settings: ParallelConfig) -> None:
        self._model = model
        self._gang = gang
        self.laps: Laps | None = None
        self._settings = settings
        self._has_exchanged = False
        self._replicated: DistributedDataParallel | None = None
        self._accepts_unused = True
        self._exchanges = True
        self._own_buffers: list[str] = []
        self.replicate()

    def disband(self) -> bool:
        """Drop DDP, and with it every reference to the process group; return True if something still refers to DDP."""
        remains = None if self._replicated is None else weakref.ref(self._replicated)
        self._replicated = None
        return remains is not None and remains() is not None

    def replicate(self, *, is_equal: bool = False) -> None:
        """Wrap the model in DDP for the gang's current ranks.

        Args:
            is_equal: True if all ranks already have the same parameters and buffers. Otherwise, rank 0's overwrite the
                others.
        """
        gang, settings = self._gang, self._settings
        self._accepts_unused = gang.world_size == 1 or settings.find_unused_parameters or settings.static_graph
        self._own_buffers = []
        if gang.world_size == 1:
            return
        self._leave_to_gang(self._model)
        self._replicated = DistributedDataParallel(
            self._model,
            device_ids=[gang.device.index] if gang.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            bucket_cap_mb=settings.bucket_mib,
            static_graph=settings.static_graph,
            find_unused_parameters=settings.find_unused_parameters,
            init_sync=not is_equal,
        )
        exchange = EXCHANGES[settings.gradient_compression]
        is_breakable = settings.reform and gang.device.type == "cpu"

        # DDP compares the hook's annotations with its own types; under `from __future__ import annotations` they are
        # strings, so the hook is not annotated.
        def timed(group, bucket):  # type: ignore[no-untyped-def]
            if self.laps is not None:
                self.laps.bucket_is_ready()
            self._has_exchanged = bucket.is_last()
            if is_breakable:
                return gang.breakage.exchange(lambda: exchange(group, bucket), bucket.buffer())
            return exchange(group, bucket)

        self._replicated.register_comm_hook(None, timed)

    def _leave_to_gang(self, model: nn.Module) -> None:
        """Exclude buffers and frozen parameters from DDP's broadcasts if it does not support their types.

        Parameters are equal from the start, because all ranks use the same seed.
        """
        self._own_buffers = [name for name, each in model.named_buffers() if not is_exchanged(each)]
        frozen = [name for name, each in model.named_parameters() if not (each.requires_grad or is_exchanged(each))]
        ignored = [*self._own_buffers, *frozen]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)  # type: ignore[no-untyped-call]

    def _share(self, names: Iterable[str]) -> None:
        """Overwrite buffers with rank 0's. Skip buffers made by expand, because no pass can change them."""
        for name in names:
            buffer = self._model.get_buffer(name)
            if is_writable(buffer):
                self._gang.broadcast_(buffer, 0)

    def __call__(self, batch: Batch) -> Tensor:
        """Return a batch's mean loss on this process; without targets, 0 with zero gradients."""
        if self._exchanges:
            self._share(self._own_buffers)
        without = {} if batch.targets else {"has_targets": False}
        return cast(Tensor, (self._replicated or self._model)(*batch.arguments, **without))

    def require_exchange(self, batch: Batch) -> None:
        """Check that the last backward pass exchanged all gradients.

        DDP exchanges its buckets in order, so it would wait forever for a parameter that the loss does not depend on.

        Raises:
            TrainingError: Gradients are missing, because the loss on this rank does not depend on all parameters.
        """
        if self._accepts_unused or self._has_exchanged:
            return
        named = {name: each for name, each in self._model.named_parameters() if each.requires_grad}
        gradients = torch.autograd.grad(self._model(*batch.arguments), list(named.values()), allow_unused=True)
        unused = [name.removeprefix("module.") for name, each in zip(named, gradients, strict=True) if each is None]
        raise TrainingError(
            f"parallel.find_unused_parameters: false: the loss of this rank's batch does not depend on "
            f"{_shown(unused)}, so the other ranks wait for these gradients; set it to true"
        )

    def share_buffers(self) -> None:
        """Overwrite all buffers with rank 0's, as DDP does at the beginning of the next step."""
        if self._replicated is not None:
            self._share([name for name, _ in self._model.named_buffers()])

    def exchanging(self, enabled: bool) -> contextlib.AbstractContextManager[None]:
        """Return a context for a forward and backward pass. It averages gradients across processes only if enabled."""
        self._has_exchanged, self._exchanges = False, enabled
        if enabled or self._replicated is None:
            return contextlib.nullcontext()
        return cast("contextlib.AbstractContextManager[None]", self._replicated.no_sync())

    def prime(
        self, model: nn.Module, batch: Batch, precision: Precision, after_pass: Callable[[], None]
    ) -> list[nn.Parameter]:
        """Run forward and backward passes on an example batch, so that DDP rebuilds its buckets before the first step.

        Args:
            model: module whose parameters are trained; its gradients are cleared after each pass, and its buffers and
                extra states are restored at the end.
            batch: example batch.
            precision: number format for the forward pass.
            after_pass: function called on all ranks after each pass; raising an exception ends the priming.

        Returns:
            The parameters that the loss depends on.

        Raises:
            ConfigurationError: A parameter has no gradient, and the settings do not allow that.
        """
        with preserved_state(model):
            return self._prime(model, batch, precision, after_pass)

    def _prime(
        self, model: nn.Module, batch: Batch, precision: Precision, after_pass: Callable[[], None]
    ) -> list[nn.Parameter]:
        for _ in range(PRIMING_PASSES):
            with precision.autocast():
                loss = self(batch)
            if not loss.requires_grad:
                raise ConfigurationError(
                    [
                        "model.function: the loss does not depend on any parameter; do not compute it with detach(), "
                        ".item(), .data or torch.no_grad()"
                    ]
                )
            loss.backward()  # type: ignore[no-untyped-call]
            unused = [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None]
            if unused and not self._accepts_unused:
                raise ConfigurationError(
                    [
                        f"parallel.find_unused_parameters: false: the loss does not depend on {_shown(unused)}, whose "
                        "gradients the other ranks would wait for; set it to true, or freeze these parameters "
                        "(requires_grad = False)"
                    ]
                )
            used = [each for each in model.parameters() if each.grad is not None]
            model.zero_grad()
            after_pass()
        return used


def _shown(names: list[str]) -> str:
    return ", ".join(names[:SHOWN_PARAMETERS]) + (", ..." if len(names) > SHOWN_PARAMETERS else "")
