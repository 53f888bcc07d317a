"""The state of a run as named tensors, and back.

Names are the model's own (`model/blocks.0.expand.weight`), so that neither the order of the optimizer's groups nor the
wrappers around a model matter. The schedule has no state: it is a function of the step.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.errors import ConfigurationError

WRAPPERS = re.compile(r"(^|(?<=\.))(module|_orig_mod)\.")
"""Name parts that DistributedDataParallel and torch.compile put before a model's own, at any depth."""


def bare_name(name: str) -> str:
    """A parameter's name without the parts that wrappers add."""
    return WRAPPERS.sub("", name)


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
        named = {f"model/{name}": tensor for name, tensor in self._model_tensors().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                assert isinstance(value, Tensor), "AdamW keeps nothing but tensors"
                named[f"optimizer/{bare_name(name)}/{key}"] = value
        return named

    def _model_tensors(self) -> dict[str, Tensor]:
        persistent = self.model.state_dict(keep_vars=True).keys()
        buffers = {name: buffer for name, buffer in self.model.named_buffers() if name in persistent}
        named = {**dict(self.model.named_parameters()), **buffers}
        return {bare_name(name): tensor for name, tensor in named.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave.

        Raises:
            ConfigurationError: names or shapes are not this model's; nothing was changed.
        """
        own = self._model_tensors()
        given = {
            bare_name(name.removeprefix("model/")): tensor
            for name, tensor in tensors.items()
            if name.startswith("model/")
        }
        problems = [f"checkpoint: has no tensor {name} of the model" for name in sorted(own.keys() - given.keys())]
        problems += [f"checkpoint: has {name}, the model does not" for name in sorted(given.keys() - own.keys())]
        problems += [
            f"checkpoint: {name} has shape {list(given[name].shape)}, the model's has {list(own[name].shape)}"
            for name in sorted(own.keys() & given.keys())
            if own[name].shape != given[name].shape
        ]
        if problems:
            raise ConfigurationError(
                [f"{problem}; resume with the same model, or name a new run" for problem in problems]
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(given[name])
        self._load_optimizer(tensors)

    def _load_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            prefix = f"optimizer/{bare_name(name)}/"
            # Everything goes where the parameter is, the step count too: that is where the fused kernel wants it.
            restored = {
                key.removeprefix(prefix): value.to(parameter.device).clone()
                for key, value in tensors.items()
                if key.startswith(prefix)
            }
            if restored:
                self.optimizer.state[parameter] = restored


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
