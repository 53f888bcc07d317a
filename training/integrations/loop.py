"""Hand-written training loops: three added lines save, resume, and respond to stop requests.

A loop that counts its steps keeps its batch, and passes it to the loop object, because it belongs to the next step::

    from training.integrations.loop import Loop                                       # 1
    loop = Loop(model, optimizer, steps=1000)                                         # 2
    step, batch = loop.resume(0, next_batch())                                        # 3
    while step < 1000:
        ...                                             # forward, backward, optimizer.step()
        batch = next_batch()
        step += 1
        loop.after_step(step, batch)                                                  # 4

Lines 2 and 3 can be one line: ``step, batch = (loop := Loop(model, optimizer, steps=1000)).resume(0, next_batch())``.

A loop over epochs reads its batches through the loop object::

    from training.integrations.loop import Loop                                       # 1
    loop = Loop(model, optimizer, state=[scheduler])                                  # 2
    for epoch in loop.epochs(10):                       # instead of range(10)        # 3
        for images, labels in loop.batches(loader):     # instead of loader           # 4
            ...                                         # forward, backward, optimizer.step()
        scheduler.step()
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from training.checkpoint import Checkpointer
from training.checkpoint.checkpointer import Resumption
from training.errors import ConfigurationError
from training.integrations.positions import Random, Saves, random_of, refuse_other_world_size, restore_random
from training.script import this_run

logger = logging.getLogger(__name__)


class Stateful(Protocol):
    """An object whose state can be saved, such as a learning rate scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Restore the state."""


class Loop:
    """Saves and resumes a hand-written loop. Every rank makes the same calls.

    Args:
        model: bare or wrapped model.
        optimizer: its optimizer.
        scaler: gradient scaler for fp16 training, if used.
        state: further objects whose state is saved, the same on all ranks.
        steps: number of steps in the run; :meth:`after_step` saves and waits after the last one.
        save_every: steps between saves. A save is also due 15 minutes after the last one.
        accumulate: batches per optimizer step, for :meth:`batches`.
        checkpoints: checkpoint store; by default, this run's.

    Attributes:
        step: optimizer steps completed.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None = None,
        *,
        state: Sequence[Stateful] = (),
        steps: int | None = None,
        save_every: int = 500,
        accumulate: int = 1,
        checkpoints: str | None = None,
    ) -> None:
        run = this_run()
        self._model = model
        self._objects = list(state)
        self._steps, self._save_every, self._accumulate = steps, save_every, accumulate
        self._checkpointer = Checkpointer(
            checkpoints or run.checkpoints, model, optimizer, scaler, generation=run.generation
        )
        self._saves = Saves(run, self._checkpointer, self._extra, self._rank_extra)
        self.step = 0
        self._values: tuple[Any, ...] = ()
        self._epoch = self._batches = 0
        self._epoch_random: Random = {}
        self._random_to_restore: Random | None = None

    def resume(self, step: int, *values: Any) -> Any:
        """Load the newest checkpoint, and return the step and the values at which it was saved.

        Args:
            step: first step of a new run.
            values: variables that the next step needs: tensors, such as a batch, and numbers, strings or collections.
                Each rank has its own. If the number of processes has changed, tensors keep the given values, and
                everything else has rank 0's.

        Returns:
            ``step`` if there are no values, otherwise a tuple of the step and the values.

        Raises:
            SystemExit: The run has already made all of its steps.
        """
        resumed = self._resume()
        if not resumed.world_size:
            self.step, self._values = step, values
        else:
            saved = resumed.rank_extra.get("values")
            if saved is None:
                saved = resumed.extra["values"]
                logger.warning("the number of processes has changed: tensors of the loop keep their initial values")
            if len(saved) != len(values):
                raise ConfigurationError(
                    [f"checkpoint: has {len(saved)} values of the loop, but resume() has {len(values)}; pass the same"]
                )
            pairs = zip(values, saved, strict=True)
            self._values = tuple(_restored(own, each, rank_0=not resumed.rank_extra) for own, each in pairs)
        if self._steps is not None and self.step >= self._steps:
            self._checkpointer.close()
            logger.info("the run has already made its %d steps", self._steps)
            raise SystemExit(0)
        return (self.step, *self._values) if values else self.step

    def after_step(self, step: int, *values: Any) -> None:
        """Save if it is due or requested. Call it when an optimizer step is complete.

        Args:
            step: optimizer steps completed.
            values: current values of the variables passed to :meth:`resume`, in the same order.

        Raises:
            Stopped: The run received a stop request, and the state is saved. Do not catch this exception.
            StoreError: The state cannot be saved.
        """
        self.step, self._values = step, values
        if step == self._steps:
            self.finish()
        else:
            self._saves.after_step(step, step % self._save_every == 0)

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the epochs that remain, and save the final state after the last one.

        Raises:
            ConfigurationError: Another number of processes saved the checkpoint in the middle of an epoch.
            Stopped: The run received a stop request, and the state is saved. Do not catch this exception.
        """
        resumed = self._resume()
        if resumed.world_size:
            self._epoch, self._batches = resumed.extra["epoch"], resumed.extra["batches"]
            refuse_other_world_size(resumed, self._batches)
            self._random_to_restore = random_of(self._model)
            self._epoch_random = resumed.rank_extra.get("epoch_random", {})
        while self._epoch < count:
            yield self._epoch
            self._epoch += 1
            self._batches = 0
            self._random_to_restore = None
        self.finish()

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield an epoch's batches. After a resume, the batches that were already used are read and dropped.

        Raises:
            ConfigurationError: The loader has fewer batches than before.
        """
        if self._batches and self._random_to_restore is not None:
            restore_random(self._model, self._epoch_random)
            iterator = iter(loader)
            logger.info("epoch %d: reading the %d batches that were already used", self._epoch, self._batches)
            for number in range(self._batches):
                if next(iterator, _END) is _END:
                    raise ConfigurationError(
                        [
                            f"data: the epoch has {number} batches, but the run already used {self._batches}; "
                            "undo the change"
                        ]
                    )
            restore_random(self._model, self._random_to_restore)
        else:
            self._batches = 0
            self._epoch_random = random_of(self._model)
            iterator = iter(loader)
        self._random_to_restore = None
        for batch in iterator:
            yield batch
            self._batches += 1
            if self._batches % self._accumulate == 0:
                self.step += 1
                self._saves.after_step(self.step, self.step % self._save_every == 0)

    def finish(self) -> None:
        """Save the final state, and wait for the commit. :meth:`epochs`, and the last step of ``steps``, call it.

        Raises:
            StoreError: The state cannot be saved.
        """
        self._saves.finish(self.step)

    def _resume(self) -> Resumption:
        resumed = self._checkpointer.resume()
        if resumed.world_size:
            self.step = resumed.step
            saved = resumed.extra["objects"]
            if len(saved) != len(self._objects):
                raise ConfigurationError(
                    [f"checkpoint: has the state of {len(saved)} objects, but the loop has {len(self._objects)}"]
                )
            for each, state in zip(self._objects, saved, strict=True):
                each.load_state_dict(state)
        return resumed

    def _extra(self) -> dict[str, Any]:
        return {
            "objects": [each.state_dict() for each in self._objects],
            "values": [None if isinstance(each, Tensor) else each for each in self._values],
            "epoch": self._epoch,
            "batches": self._batches,
        }

    def _rank_extra(self) -> dict[str, Any]:
        return {"values": list(self._values), "epoch_random": self._epoch_random}


_END = object()


def _restored(own: Any, saved: Any, *, rank_0: bool) -> Any:
    if rank_0 and isinstance(own, Tensor):
        return own
    if isinstance(own, Tensor) and isinstance(saved, Tensor):
        return saved.to(own.device)
    return saved
