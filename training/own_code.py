"""People's own models and datasets: finding the function, and checking what it gives back."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sized
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training.data.samples import NO_TARGET
from training.errors import ConfigurationError

SHOWN_CHARACTERS = 80


def import_function(path: str, key: str) -> Callable[..., Any]:
    """Import ``package.module:function``.

    Args:
        path: which.
        key: of the config, for messages.

    Raises:
        ConfigurationError: there is no such module or function; errors inside the module are raised as they are.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise  # a module that the user's code imports is missing: its traceback says where
        raise ConfigurationError(
            [f"{key}: {path}: there is no module {error.name}; put it into training.code, or on PYTHONPATH"]
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        what = "has nothing called" if function is None else "has no function"
        raise ConfigurationError([f"{key}: {path}: {module.__file__} {what} {name}; correct the name"])
    return function  # type: ignore[no-any-return]


def call(path: str, key: str, options: Mapping[str, Any], **arguments: Any) -> Any:
    """Call the user's function, with those of our arguments that it names and all of the user's options.

    Raises:
        ConfigurationError: it does not take the options, or wants what nobody gives.
    """
    function = import_function(path, key)
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # built in: it has no signature to look at
        return function(**arguments, **options)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    given = {name: value for name, value in arguments.items() if takes_any or name in parameters} | dict(options)
    problems = [
        f"{key}: {path} has no parameter {name!r}, which options give; it takes {', '.join(parameters) or 'none'}"
        for name in options
        if not takes_any and name not in parameters
    ]
    problems += [
        f"{key}: {path} wants {name!r}; give it in options, or a default in the function"
        for name, parameter in parameters.items()
        if name not in given
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    if problems:
        raise ConfigurationError(problems)
    return function(**given)


def build_model(path: str, options: Mapping[str, Any], **arguments: Any) -> nn.Module:
    """The user's model.

    Raises:
        ConfigurationError: the function gives back something else, or a model with nothing to train.
    """
    model = call(path, "model.function", options, **arguments)
    if not isinstance(model, nn.Module):
        raise ConfigurationError(
            [f"model.function: {path} returned {_shown(model)}; it must return a torch.nn.Module (not its class)"]
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigurationError([f"model.function: {path} returned a model without parameters that can be trained"])
    return model


def build_dataset(path: str, options: Mapping[str, Any], split: str, directory: Path) -> Any:
    """The user's dataset: something with a length and items.

    Raises:
        ConfigurationError: the function gives back something else, or nothing to train on.
    """
    dataset = call(path, "data.function", options, split=split, directory=directory)
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise ConfigurationError(
            [
                f"data.function: {path} returned {_shown(dataset)} for {split!r}; it must return a map-style dataset, "
                "an object with __len__ and __getitem__"
            ]
        )
    if len(dataset) == 0:
        raise ConfigurationError([f"data.function: {path} returned an empty dataset for {split!r} in {directory}"])
    return dataset


class SummedLoss(nn.Module):
    """Turns a model that gives the mean loss of a batch into one that gives the sum, which micro-batches add up to.

    The mean is over the samples, or over the targets of token batches (NO_TARGET not counted).

    Args:
        model: takes a batch as positional arguments, or as keyword arguments where the batch is a mapping.
        counts_targets: whether the terms of the mean are the targets of a token batch.
        path: of the model's function, for messages.
    """

    def __init__(self, model: nn.Module, counts_targets: bool, path: str) -> None:
        super().__init__()
        self.module = model
        self._counts_targets = counts_targets
        self._path = path

    def forward(self, *batch: Any) -> Tensor:
        """The sum of the losses of a batch. Shapes: scalar."""
        loss = self.module(**batch[0]) if len(batch) == 1 and isinstance(batch[0], Mapping) else self.module(*batch)
        if not isinstance(loss, Tensor) or loss.dim() != 0 or not loss.is_floating_point():
            raise ConfigurationError(
                [
                    f"model.function: the model of {self._path} returned {_shown(loss)} for a batch; its forward must "
                    "return the mean loss, a floating-point tensor without dimensions"
                ]
            )
        if self._counts_targets:
            return torch.mul(loss.float(), (batch[1] != NO_TARGET).sum())
        return torch.mul(loss.float(), samples_in(batch))


def samples_in(batch: Any) -> int:
    """Length of the first dimension of a batch's first tensor.

    Raises:
        ConfigurationError: the batch holds no tensor with a dimension.
    """
    waiting = [batch]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, Tensor) and value.dim():
            return len(value)
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, (tuple, list)):
            waiting += value
    raise ConfigurationError(
        ["data.function: a batch holds no tensor with a dimension for its samples; let items be tensors, or numbers"]
    )


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {list(value.shape)}".replace("torch.", "")
    text = repr(value)
    return f"{type(value).__name__} ({text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + '...'})"
