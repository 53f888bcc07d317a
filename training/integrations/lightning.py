"""Lightning: one callback saves and resumes a run, and responds to stop requests.

    from training.integrations.lightning import CheckpointCallback
    trainer = lightning.Trainer(..., callbacks=[CheckpointCallback()])

Model, optimizer, schedulers, the Trainer's loops, the other callbacks and all random states are saved. A resumed run
reads the epoch's batches that were already used and drops them, so that it sees the same data, including random
augmentation. ``enable_checkpointing=False`` turns off Lightning's own checkpoints, which the callback replaces.

Tested with lightning 2.6.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from copy import deepcopy
from importlib import import_module
from typing import Any

from training.checkpoint import Checkpointer
from training.checkpoint.checkpointer import Resumption
from training.errors import ConfigurationError
from training.integrations.positions import Random, Saves, random_of, refuse_other_world_size, restore_random
from training.script import this_run

logger = logging.getLogger(__name__)
_UNIFIED, _SEPARATE = "lightning.pytorch", "pytorch_lightning"
_lightning: Any = import_module(_SEPARATE if _SEPARATE in sys.modules and _UNIFIED not in sys.modules else _UNIFIED)
"""Two distributions have the same classes. A Trainer accepts only callbacks of its own."""

_PROGRESS = "epoch_loop.batch_progress"
"""The entry of the loops' state that counts the batches. Source: lightning 2.6, loops/fit_loop.py."""


class CheckpointCallback(_lightning.Callback):  # type: ignore[misc]
    """Saves and resumes a Lightning run. Only ``Trainer.fit`` uses it.

    Args:
        save_every: steps between saves. A save is also due 15 minutes after the last one.
        checkpoints: checkpoint store; by default, this run's.
    """

    def __init__(self, save_every: int = 500, checkpoints: str | None = None) -> None:
        super().__init__()
        self._save_every = save_every
        self._run = this_run()
        self._checkpoints = checkpoints or self._run.checkpoints
        self._trainer: Any = None
        self._saves: Saves | None = None
        self._step = 0
        self._batches_to_drop = 0
        self._random_to_restore: Random = {}
        self._epoch_random: Random = {}
        self._before_fetch: Random = {}
        self._has_fetched = False

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Load the newest checkpoint.

        Raises:
            ConfigurationError: The run cannot be saved, or the checkpoint is of another run.
        """
        problems = list(_problems(trainer, pl_module))
        if problems:
            raise ConfigurationError(problems)
        self._trainer = trainer
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        checkpointer = Checkpointer(
            self._checkpoints, pl_module, trainer.optimizers[0], scaler, generation=self._run.generation
        )
        resumed = checkpointer.resume()
        self._saves = Saves(self._run, checkpointer, self._extra, self._rank_extra)
        if resumed.world_size:
            self._restore(resumed)
        else:
            self._epoch_random = random_of(pl_module)

    def _restore(self, resumed: Resumption) -> None:
        trainer, extra = self._trainer, resumed.extra
        refuse_other_world_size(resumed, extra["batches"])
        for config, state in zip(trainer.lr_scheduler_configs, extra["schedulers"], strict=True):
            config.scheduler.load_state_dict(state)
        for callback in self._others():
            if callback.state_key in extra["callbacks"]:
                callback.load_state_dict(extra["callbacks"][callback.state_key])
        trainer.fit_loop.load_state_dict(extra["fit_loop"])
        self._step, self._batches_to_drop = resumed.step, extra["batches"]
        self._random_to_restore = random_of(trainer.lightning_module)
        self._epoch_random = resumed.rank_extra.get("epoch_random", {})

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """After a resume: drop the batches that were already used, and restore the random states.

        Raises:
            ConfigurationError: The epoch has fewer batches than before.
        """
        if not self._random_to_restore:
            return
        # The Trainer has created the loaders' iterators before it has set the samplers' epochs.
        for loader in trainer.fit_loop._combined_loader.flattened:
            _set_epoch(loader, trainer.fit_loop.epoch_progress.current.processed)
        restore_random(pl_module, self._epoch_random)
        fetcher = trainer.fit_loop._data_fetcher
        iter(fetcher)
        if self._batches_to_drop:
            logger.info("reading the %d batches of this epoch that were already used", self._batches_to_drop)
            for number in range(self._batches_to_drop):
                if next(fetcher, None) is None:
                    raise ConfigurationError(
                        [
                            f"data: the epoch has {number} batches, but the run already used {self._batches_to_drop}; "
                            "undo the change"
                        ]
                    )
            # The loop adds them again.
            fetcher.fetched -= self._batches_to_drop
            restore_random(pl_module, self._random_to_restore)
        self._before_fetch = self._random_to_restore
        self._random_to_restore = {}

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Keep the random states that determine the epoch's order. The first epoch's iterator already exists."""
        self._before_fetch = random_of(pl_module)
        if trainer.current_epoch:
            self._epoch_random = self._before_fetch

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Save if it is due or requested. The state is that before the batch was fetched.

        Raises:
            Stopped: The run received a stop request, and the state is saved.
        """
        del batch, batch_idx
        if trainer.global_step == self._step:  # gradients are being accumulated
            return
        self._step = trainer.global_step
        assert self._saves is not None, "opened in on_fit_start"
        now = random_of(pl_module)
        restore_random(pl_module, self._before_fetch)
        self._has_fetched = True
        try:
            self._saves.after_step(self._step, self._step % self._save_every == 0)
        finally:
            self._has_fetched = False
            restore_random(pl_module, now)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report the loss when a step is complete."""
        del batch, batch_idx
        self._before_fetch = random_of(pl_module)
        loss = outputs.get("loss") if isinstance(outputs, dict) else None
        step = trainer.global_step
        if step > self._step and loss is not None and step % trainer.log_every_n_steps == 0:
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            self._run.report("step", step=step, loss=float(loss), learning_rate=float(rate))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Keep the random states, because validation draws from them."""
        if not trainer.sanity_checking:
            self._before_fetch = random_of(pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the final state."""
        del pl_module
        assert self._saves is not None, "opened in on_fit_start"
        self._saves.finish(trainer.global_step)
        self._saves = None

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the checkpointer of a run that had already finished."""
        del trainer, pl_module
        if self._saves is not None:
            self._saves.close()

    def _extra(self) -> dict[str, Any]:
        trainer = self._trainer
        state = deepcopy(trainer.fit_loop.state_dict())
        batches = state[_PROGRESS]
        if self._has_fetched:
            batches["total"]["ready"] -= 1
            batches["current"]["ready"] -= 1
            batches["is_last_batch"] = False
        return {
            "fit_loop": state,
            "schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
            "callbacks": {each.state_key: each.state_dict() for each in self._others()},
            "batches": batches["current"]["ready"],
        }

    def _rank_extra(self) -> dict[str, Any]:
        return {"epoch_random": self._epoch_random}

    def _others(self) -> list[Any]:
        return [each for each in self._trainer.callbacks if each is not self and each.state_dict()]


def _set_epoch(loader: Any, epoch: int) -> None:
    batch_sampler = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)):
        set_epoch = getattr(sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


def _problems(trainer: Any, module: Any) -> Iterator[str]:
    if len(trainer.optimizers) != 1:
        yield f"configure_optimizers: must return one optimizer, not {len(trainer.optimizers)}"
    if not module.automatic_optimization:
        yield "automatic_optimization: False: the callback cannot tell when a step is complete; set True"
    if trainer.ckpt_path is not None:
        yield "ckpt_path: this callback resumes the run; remove it"
    if "fsdp" in type(trainer.strategy).__name__.lower() or "deepspeed" in type(trainer.strategy).__name__.lower():
        yield f"strategy: {type(trainer.strategy).__name__} divides the state among the ranks; use ddp"
