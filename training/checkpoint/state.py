"""The state of a run as named tensors, and back.

Names are the model's own (`model/blocks.0.expand.weight`), so that neither the order of the optimizer's groups nor the
wrappers around a model matter. The schedule has no state: it is a function of the step.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from training.errors import ConfigurationError

WRAPPERS = re.compile(r"(^|(?<=\.))(module|_orig_mod)\.")
"""Name parts that DistributedDataParallel and torch.compile put before a model's own, at any depth."""


def bare_name(name: str) -> str:
    """A parameter's name without the parts that wrappers add."""
    return WRAPPERS.sub("", name)


class Form(Protocol):
    """What a tensor and the record of one have in common."""

    @property
    def shape(self) -> Sequence[int]:
        """Lengths of its dimensions."""

    @property
    def dtype(self) -> torch.dtype | str:
        """Type of its elements."""


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers of a model, bare or wrapped; tied ones once."""
    persistent = model.state_dict(keep_vars=True).keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    named = {**dict(model.named_parameters()), **buffers}
    return {bare_name(name): tensor for name, tensor in named.items()}


def model_targets(model: nn.Module, records: Mapping[str, Form]) -> tuple[dict[str, Tensor], list[str]]:
    """Where a checkpoint's ``model/`` tensors go, by its names, and in words what of them does not fit."""
    own = model_tensors(model)
    given = {
        bare_name(name.removeprefix("model/")): (name, record)
        for name, record in records.items()
        if name.startswith("model/")
    }
    problems = [f"checkpoint: has no tensor {name} of the model" for name in sorted(own.keys() - given.keys())]
    problems += [f"checkpoint: has {name}, the model does not" for name in sorted(given.keys() - own.keys())]
    problems += [
        f"checkpoint: {name} has shape {list(given[name][1].shape)}, the model's has {list(own[name].shape)}"
        for name in sorted(own.keys() & given.keys())
        if list(own[name].shape) != list(given[name][1].shape)
    ]
    return {given[name][0]: tensor for name, tensor in own.items() if name in given}, problems


@dataclass
class TrainingState:
    """The objects whose state a checkpoint holds.

    Attributes:
        model: bare or wrapped.
        optimizer: of the model's parameters.
        scaler: gradient scaler, disabled outside fp16.
        step: optimizer steps done.
        position: samples consumed by the run.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int = 0
    position: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """State that is the same on every rank: parameters and buffers (tied ones once), and the optimizer's."""
        named = {f"model/{name}": tensor for name, tensor in model_tensors(self.model).items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if value is None:
                    continue
                if not isinstance(value, Tensor):
                    raise ConfigurationError(
                        [f"optimizer: its {key} of {name} is a {type(value).__name__}; only tensors can be saved"]
                    )
                named[f"optimizer/{bare_name(name)}/{key}"] = value
        return named

    def targets(self, records: Mapping[str, Form]) -> dict[str, Tensor]:
        """Tensors of this state, by the names of a checkpoint's; the optimizer's are made anew.

        Args:
            records: the checkpoint's tensors, or anything else with their shapes.

        Raises:
            ConfigurationError: names or shapes are not this model's; nothing was changed.
        """
        moments = self._moments(records)
        targets, problems = model_targets(self.model, records)
        problems += [
            f"checkpoint: has {name}, which is state of no parameter of the model"
            for name in sorted(records)
            if not name.startswith("model/") and name not in moments
        ]
        if problems:
            raise ConfigurationError(
                [f"{problem}; resume with the same model, or name a new run" for problem in problems]
            )
        return targets | self._make_moments(moments, records)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave.

        Raises:
            ConfigurationError: names or shapes are not this model's; nothing was changed.
        """
        with torch.no_grad():
            for name, target in self.targets(tensors).items():
                target.copy_(tensors[name])

    def _moments(self, records: Mapping[str, Form]) -> dict[str, tuple[nn.Parameter, str]]:
        """Of the checkpoint's tensors, those that are optimizer state: parameter and key."""
        parameters = {bare_name(name): parameter for name, parameter in self.model.named_parameters()}
        found = {}
        for name in records:
            if name.startswith("optimizer/"):
                owner, _, key = name.removeprefix("optimizer/").rpartition("/")
                if bare_name(owner) in parameters:
                    found[name] = (parameters[bare_name(owner)], key)
        return found

    def _make_moments(
        self, moments: Mapping[str, tuple[nn.Parameter, str]], records: Mapping[str, Form]
    ) -> dict[str, Tensor]:
        made: dict[str, Tensor] = {}
        for parameter in self.model.parameters():
            self.optimizer.state.pop(parameter, None)
        for name, (parameter, key) in moments.items():
            record = records[name]
            dtype = record.dtype if isinstance(record.dtype, torch.dtype) else getattr(torch, record.dtype)
            # Everything goes where the parameter is, the step count too: that is where the fused kernel wants it.
            made[name] = torch.empty(tuple(record.shape), dtype=dtype, device=parameter.device)
            self.optimizer.state[parameter][key] = made[name]
        return made


def random_state(device: torch.device) -> dict[str, Tensor]:
    """States of the generators that this rank draws from. Shapes: each [bytes] uint8 on the host."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Undo :func:`random_state`."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def seed_random_state(seed: int, rank: int, step: int) -> None:
    """Derive a generator state for a rank that has none from an earlier life."""
    digest = hashlib.blake2b(f"{seed}/{rank}/{step}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little") >> 1)
