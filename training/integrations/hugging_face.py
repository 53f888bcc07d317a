"""HF Trainer: two lines save and resume a run, and respond to stop requests.

    from training.integrations.hugging_face import resume_folder
    trainer.train(resume_from_checkpoint=resume_folder(trainer))

The run saves as often as the Trainer's ``save_strategy`` requests, but to its own checkpoint store, not ``output_dir``.
Model, optimizer, scheduler, the Trainer's own state and all random states are saved. A resumed run sees the same
samples in the same order. Random numbers that the dataset itself draws while loading, such as those of an augmentation,
are the same only if it derives them from the number of the sample: Accelerate fetches a batch ahead of its use.

Tested with transformers 5.24 and accelerate 1.15.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from training.checkpoint import Checkpointer
from training.errors import ConfigurationError
from training.integrations.positions import Random, Saves, random_of, restore_random
from training.script import this_run

logger = logging.getLogger(__name__)
_transformers: Any = import_module("transformers")

STATE_FILE = "trainer_state.json"
"""The file from which the Trainer resumes its own state. Source: transformers.trainer, TRAINER_STATE_NAME."""


def resume_folder(trainer: Any, checkpoints: str | None = None) -> str | None:
    """Load the newest checkpoint into a Trainer, and add a callback that saves.

    Args:
        trainer: a ``transformers.Trainer`` that has not trained yet.
        checkpoints: checkpoint store; by default, this run's.

    Returns:
        The value for ``Trainer.train(resume_from_checkpoint=...)``; None for a new run.

    Raises:
        ConfigurationError: The Trainer's settings do not allow to resume it, or the checkpoint is of another model.
    """
    problems = list(_problems(trainer))
    if problems:
        raise ConfigurationError(problems)
    trainer.create_optimizer()
    callback = CheckpointCallback(trainer, checkpoints)
    trainer.add_callback(callback)
    return callback.folder


def _problems(trainer: Any) -> Iterator[str]:
    settings = trainer.args
    if settings.save_strategy not in ("steps", "epoch"):
        name = getattr(settings.save_strategy, "value", settings.save_strategy)  # an enumeration after its validation
        yield f"save_strategy: {name}: the run would not save regularly; set steps or epoch"
    if trainer.model_init is not None:
        yield "model_init: train() would create another model than the one that resumes; pass model"
    if settings.load_best_model_at_end:
        yield "load_best_model_at_end: needs the Trainer's own folders, which this callback replaces; set False"
    if settings.ignore_data_skip:
        yield "ignore_data_skip: a resumed run would see the epoch's first samples again; set False"
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        yield "FSDP and DeepSpeed divide the state among the ranks, and cannot be saved; use DDP"


class CheckpointCallback(_transformers.TrainerCallback):  # type: ignore[misc]
    """Saves a Trainer's run when its ``save_strategy`` or a request asks for it, and at the end.

    The state is saved when the next step begins, and not when a step ends, because an evaluation in between draws
    random numbers. A resumed run restores its random states at the same point.

    Attributes:
        folder: folder from which the Trainer resumes its own state; None for a new run.
    """

    def __init__(self, trainer: Any, checkpoints: str | None) -> None:
        run = this_run()
        self._run, self._trainer = run, trainer
        scaler = getattr(trainer.accelerator, "scaler", None)
        checkpointer = Checkpointer(
            checkpoints or run.checkpoints, trainer.model, trainer.optimizer, scaler, generation=run.generation
        )
        resumed = checkpointer.resume()
        self._saves = Saves(run, checkpointer, self._extra, self._rank_extra)
        self._is_due = False
        self._step = resumed.step
        self._scheduler: Any = None
        self._scheduler_state: dict[str, Any] | None = resumed.extra.get("scheduler")
        self._resumed_random: Random | None = None
        self._resumed_epoch_random: Random = resumed.rank_extra.get("epoch_random", {})
        self._epoch_random: Random = {}
        self._groups: list[dict[str, Any]] = []
        self.folder: str | None = None
        if resumed.world_size:
            self._resumed_random = random_of(trainer.model)
            self._groups = [
                {key: each for key, each in group.items() if key != "params"}
                for group in trainer.optimizer.param_groups
            ]
            self.folder = tempfile.mkdtemp(prefix="trainer-state-")
            Path(self.folder, STATE_FILE).write_text(resumed.extra["trainer"], encoding="utf-8")
            # The model is already loaded, so the Trainer must not look for its weights in the folder.
            trainer._load_from_checkpoint = _keep_model

    def on_train_begin(self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **_: Any) -> None:
        """Restore the scheduler, which the Trainer has just created."""
        del args, control
        if state.global_step != self._step:
            raise ConfigurationError(
                [
                    f"resume_from_checkpoint: the Trainer starts at step {state.global_step}, but the checkpoint is of "
                    f"step {self._step}; call trainer.train(resume_from_checkpoint=resume_folder(trainer))"
                ]
            )
        if self._step >= state.max_steps > 0 and self.folder is not None:
            self._saves.close()
            logger.info("the run has already made its %d steps", self._step)
            raise SystemExit(0)
        self._scheduler = lr_scheduler
        if self._scheduler_state is not None and lr_scheduler is not None:
            lr_scheduler.load_state_dict(self._scheduler_state)
        # A new scheduler sets the learning rate of its first step.
        for group, values in zip(self._trainer.optimizer.param_groups, self._groups, strict=bool(self._groups)):
            group.update(values)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep the random states that determine the epoch's order; restore them if the epoch is resumed."""
        del args, state, control
        if self._resumed_random is not None and self._resumed_epoch_random:
            restore_random(self._trainer.model, self._resumed_epoch_random)
            self._resumed_epoch_random = {}
        self._epoch_random = random_of(self._trainer.model)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save if it is due or requested; after a resume, restore the random states instead."""
        del args, control
        if self._resumed_random is not None:
            restore_random(self._trainer.model, self._resumed_random)
            self._resumed_random = None
        elif state.global_step > self._step:
            self._step = state.global_step
            self._saves.after_step(self._step, self._is_due)
            self._is_due = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take over a save that the Trainer would make."""
        del args, state
        self._is_due |= control.should_save
        control.should_save = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take over a save that the Trainer would make."""
        self.on_step_end(args, state, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Report the loss to the run's metrics."""
        del args, control
        values = logs or {}
        if "loss" in values:
            self._run.report(
                "step",
                step=state.global_step,
                loss=float(values["loss"]),
                learning_rate=values.get("learning_rate"),
                gradient_norm=values.get("grad_norm"),
            )
        if "eval_loss" in values:
            self._run.report("validation", step=state.global_step, loss=float(values["eval_loss"]))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the final state."""
        del args, control
        self._step = state.global_step
        self._saves.finish(self._step)

    def _extra(self) -> dict[str, Any]:
        state = self._trainer.state
        for callback in [*self._trainer.callback_handler.callbacks, self._trainer.control]:
            if isinstance(callback, _transformers.trainer_callback.ExportableState):
                state.stateful_callbacks[type(callback).__name__] = callback.state()
        scheduler = self._scheduler
        return {
            "trainer": json.dumps(asdict(state)),
            "scheduler": None if scheduler is None else scheduler.state_dict(),
        }

    def _rank_extra(self) -> dict[str, Any]:
        return {"epoch_random": self._epoch_random}


def _keep_model(*_: Any, **__: Any) -> None:
    """Stand in for ``Trainer._load_from_checkpoint``: the model has already been loaded."""
