"""The objects whose state a checkpoint contains, and their state as named tensors and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from training.checkpoint.manifest import OptimizerRecord
from training.checkpoint.state import optimizer as optimizers
from training.checkpoint.state.model import (
    Form,
    extra_states,
    model_targets,
    named_tensors,
    problems_of_model,
    problems_of_other_extra_states,
    set_extra_states,
)
from training.errors import ConfigurationError
from training.process.garbage_collection import paused_garbage_collection

REMEDY = "resume with the same model and optimizer, or name a new run"


@dataclass(frozen=True)
class Captured:
    """The state at one point in time. The tensors are the run's own tensors, not copies.

    Attributes:
        shared: parameters and optimizer state, the same on every rank.
        buffers: persistent buffers, which may differ between ranks; rank 0's buffers are saved.
        optimizer: the optimizer's groups and values.
        extra_states: the modules' encoded extra states.
    """

    shared: dict[str, Tensor]
    buffers: dict[str, Tensor]
    optimizer: OptimizerRecord
    extra_states: dict[str, Any]

    def of_rank(self, rank: int) -> dict[str, Tensor]:
        """Return the tensors that only this rank saves."""
        return self.buffers if rank == 0 else {}


@dataclass
class TrainingState:
    """The objects whose state a checkpoint contains. The constructor rejects state that cannot be checkpointed.

    Attributes:
        model: bare or wrapped model.
        optimizer: optimizer for the model's parameters.
        scaler: gradient scaler, disabled outside fp16.
        step: optimizer steps completed.
        position: number of samples consumed by the run.

    Raises:
        ConfigurationError: Part of the state cannot be saved and loaded; the messages identify it.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        problems = problems_of_model(self.model)
        if not problems:
            problems = optimizers.problems_of_optimizer(self.optimizer, self._names())
        if problems:
            raise ConfigurationError(problems)
        self._known: optimizers.Known = WeakValueDictionary()
        self._is_checked = False
        self.optimizer.register_step_post_hook(self._check_first_step)

    @paused_garbage_collection()
    def capture(self) -> Captured:
        """Return the state.

        Raises:
            ConfigurationError: Part of the state cannot be saved.
        """
        named = named_tensors(self.model)
        tensors, record = optimizers.capture(self.optimizer, self._names(), self._known)
        return Captured(
            shared={f"model/{name}": parameter for name, parameter in named.parameters.items()} | tensors,
            buffers={f"model/{name}": buffer for name, buffer in named.buffers.items()},
            optimizer=record,
            extra_states=extra_states(self.model),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors in the state: parameters, buffers and optimizer state. Tied tensors appear once."""
        captured = self.capture()
        return captured.shared | captured.buffers

    def targets(
        self,
        records: Mapping[str, Form],
        saved: OptimizerRecord | None = None,
        saved_extra_states: Mapping[str, Any] | None = None,
    ) -> dict[str, Tensor]:
        """Return this state's tensors by their names in the checkpoint. Optimizer state is reallocated.

        Args:
            records: the checkpoint's tensors, or objects with their shapes and dtypes.
            saved: the checkpoint's optimizer; None for imported weights.
            saved_extra_states: the checkpoint's extra states; None for imported weights.

        Raises:
            ConfigurationError: The checkpoint belongs to another model or optimizer; nothing was changed.
        """
        names = self._names()
        targets, problems = model_targets(self.model, records)
        if saved is not None:
            problems += optimizers.problems_of_other(self.optimizer, names, saved)
        if saved_extra_states is not None:
            problems += problems_of_other_extra_states(self.model, saved_extra_states)
        owners = set(names.values())
        moments = {name for name in records if name.startswith((optimizers.STATE, optimizers.NESTED))}
        problems += [
            f"checkpoint: has {name}, which does not belong to a parameter of the model"
            for name in sorted(records)
            if not name.startswith("model/") and not (name in moments and optimizers.owner_of(name) in owners)
        ]
        if problems:
            raise ConfigurationError([f"{problem}; {REMEDY}" for problem in problems])
        values = {} if saved is None else saved.values
        return targets | optimizers.make_state(self.optimizer, names, records, values)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the tensors returned by :meth:`tensors`.

        Raises:
            ConfigurationError: Names or shapes do not match this model; nothing was changed.
        """
        with torch.no_grad():
            for name, target in self.targets(tensors).items():
                target.copy_(tensors[name])

    def set_extra_states(self, encoded: Mapping[str, Any]) -> None:
        """Restore the modules' extra states."""
        set_extra_states(self.model, encoded)

    def restore_groups(self, saved: OptimizerRecord) -> None:
        """Restore the optimizer's learning rates and other values that a scheduler may change."""
        optimizers.restore_groups(self.optimizer, saved)

    def _names(self) -> dict[nn.Parameter, str]:
        return {parameter: name for name, parameter in named_tensors(self.model).parameters.items()}

    def _check_first_step(self, *_: Any) -> None:
        """Reject an optimizer whose state cannot be saved, immediately after its first step has created that state."""
        if self.optimizer.state and not self._is_checked:
            self.capture()
            self._is_checked = True
