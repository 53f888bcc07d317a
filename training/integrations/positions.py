"""Positions in an epoch, and saves while a program trains.

To continue in the middle of an epoch, a program must see the batches that the interrupted program would have seen. The
random states at the start of the epoch determine them: a DataLoader without a generator of its own takes its order, and
the seeds of its workers, from torch's global generator. A resumed program therefore restores these states, creates the
loader's iterator, and reads the batches that were already used. Then it continues with the states at the save.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from training.checkpoint import Checkpointer
from training.checkpoint.checkpointer import Resumption
from training.checkpoint.state.generators import random_state, restore_random_state
from training.errors import ConfigurationError
from training.script import ThisRun

logger = logging.getLogger(__name__)

MAX_SAVE_INTERVAL_SECONDS = 900.0
"""Longest time between saves. It is also the trainer's default (`checkpoint.interval_steps`)."""

Random = dict[str, Tensor]
State = Callable[[], dict[str, Any]]


class Saves:
    """Saves a run when a save is due or requested, and when it ends.

    Args:
        run: this process's run.
        checkpointer: checkpointer that has resumed.
        extra: function that returns the state that all ranks share.
        rank_extra: function that returns this rank's own state.
    """

    def __init__(self, run: ThisRun, checkpointer: Checkpointer, extra: State, rank_extra: State) -> None:
        self._run, self._checkpointer = run, checkpointer
        self._extra, self._rank_extra = extra, rank_extra
        self._saved_at = time.monotonic()
        self._is_due = False

    def after_step(self, step: int, is_due: bool) -> None:
        """Handle requests; save if ``is_due``, or if the last save was too long ago. All ranks call it.

        A save that is due while another one is in flight is made up for after a later step.

        Args:
            step: optimizer steps completed.
            is_due: True to save; the same on all ranks.

        Raises:
            Stopped: The run received a stop request, and the state is saved.
            StoreError: The state cannot be saved.
        """
        self._is_due |= is_due or time.monotonic() - self._saved_at > MAX_SAVE_INTERVAL_SECONDS
        saved = self._run.handle_requests(
            self._checkpointer, step, self._extra, self._rank_extra, wants_save=self._is_due
        )
        if saved:
            self._is_due, self._saved_at = False, time.monotonic()

    def finish(self, step: int) -> None:
        """Save the final state, wait for the commit, and close the checkpointer.

        Raises:
            StoreError: The state cannot be saved.
        """
        self._checkpointer.save(step, self._extra(), rank_extra=self._rank_extra(), wait=True)
        self._run.step = step
        self.close()

    def close(self) -> None:
        """Wait for the save in flight, and close the checkpointer."""
        self._checkpointer.close()


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's parameters."""
    return next(model.parameters()).device


def random_of(model: nn.Module) -> Random:
    """Return copies of this process's random states, including that of the model's device."""
    return {name: each.clone() for name, each in random_state(device_of(model)).items()}


def restore_random(model: nn.Module, states: Random) -> None:
    """Restore the states returned by :func:`random_of`."""
    restore_random_state(states, device_of(model))


def refuse_other_world_size(resumed: Resumption, batches: int) -> None:
    """Reject a checkpoint from the middle of an epoch that another number of processes saved.

    Raises:
        ConfigurationError: The processes would not see the epoch's remaining batches.
    """
    if batches and not resumed.rank_extra:
        raise ConfigurationError(
            [
                f"checkpoint: {resumed.world_size} processes saved step {resumed.step} in the middle of an epoch, and "
                "another number of processes cannot continue it with the same data; use the same number of "
                "processes (min_nodes: the number of nodes), or name a new run"
            ]
        )
