"""A model's state: parameters, persistent buffers and extra states, by name.

Names come from the bare model (`blocks.0.expand.weight`), so wrapping the model or parts of it does not change them.
Wrappers are recognized by type, because a user's module may have an attribute `module` that is part of the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from training.checkpoint.state.values import decode, encode, tensor_problem
from training.errors import ConfigurationError

WRAPPERS = {
    ("torch.nn.parallel.distributed", "DistributedDataParallel"): "module",
    ("torch.nn.parallel.data_parallel", "DataParallel"): "module",
    ("torch._dynamo.eval_frame", "OptimizedModule"): "_orig_mod",
    (
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "CheckpointWrapper",
    ): "_checkpoint_wrapped_module",
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "OffloadWrapper"): "_checkpoint_wrapped_module",
}
"""Each wrapper's module and class, and the attribute with the wrapped module. Types are compared by name, because
importing torch._dynamo takes seconds. Source: torch 2.13."""
FOREIGN_WRAPPERS = re.compile(r"(^|(?<=\.))(module|_orig_mod|_checkpoint_wrapped_module)\.")
"""Wrapper components that other programs leave in the names of an exported state_dict."""
SHARDED = "torch.distributed.fsdp"
EXTRA_STATE = "_extra_state"
"""The name of a module's extra state in a state_dict.
Source: https://docs.pytorch.org/docs/2.13/generated/torch.nn.Module.html#torch.nn.Module.get_extra_state (2026-11)."""


class Form(Protocol):
    """The shape and dtype of a tensor or a tensor record."""

    @property
    def shape(self) -> Sequence[int]:
        """The dimensions' sizes."""

    @property
    def dtype(self) -> torch.dtype | str:
        """The elements' type."""


@dataclass(frozen=True)
class NamedTensors:
    """A model's tensors. Each tensor appears once, under its first name.

    Attributes:
        parameters: parameters by name.
        buffers: persistent buffers by name. They may differ between ranks; rank 0's buffers are authoritative, as in
            DistributedDataParallel.
    """

    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]


def bare_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield each module once, in the order of ``named_modules``, with its name in the model without wrappers."""
    return _walk(model, "", set())


def _walk(module: nn.Module, name: str, seen: set[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    if module in seen:
        return
    seen.add(module)
    yield name, module
    wrapped = wrapped_name(module)
    for component, child in module.named_children():
        yield from _walk(child, name if component == wrapped else _join(name, component), seen)


def wrapped_name(module: nn.Module) -> str | None:
    """Return the attribute name of the wrapped module; None if the module is not a wrapper."""
    for kind in type(module).__mro__:
        if (kind.__module__, kind.__qualname__) in WRAPPERS:
            return WRAPPERS[kind.__module__, kind.__qualname__]
    return None


def named_tensors(model: nn.Module) -> NamedTensors:
    """Return a bare or wrapped model's tensors.

    Raises:
        ConfigurationError: Two tensors have the same name.
    """
    parameters: dict[str, nn.Parameter] = {}
    buffers: dict[str, Tensor] = {}
    seen: set[int] = set()
    problems = []
    for prefix, module in bare_modules(model):
        own_buffers = {
            name: each for name, each in module._buffers.items() if name not in module._non_persistent_buffers_set
        }
        for name, tensor in [*module._parameters.items(), *own_buffers.items()]:
            if tensor is None or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            full = _join(prefix, name)
            if full in parameters or full in buffers:
                problems.append(f"model: two tensors are named {full} without wrappers; rename a module")
            elif isinstance(tensor, nn.Parameter):
                parameters[full] = tensor
            else:
                buffers[full] = tensor
    if problems:
        raise ConfigurationError(problems)
    return NamedTensors(parameters, buffers)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return a bare or wrapped model's parameters and persistent buffers. Tied tensors appear once."""
    named = named_tensors(model)
    return {**named.parameters, **named.buffers}


def model_targets(model: nn.Module, records: Mapping[str, Form]) -> tuple[dict[str, Tensor], list[str]]:
    """Return the model's tensors by their ``model/`` names in the checkpoint, and one message for each mismatch.

    Names in a state_dict exported by another program may contain wrapper components.
    """
    own = model_tensors(model)
    names = {name.removeprefix("model/"): name for name in records if name.startswith("model/")}
    given = {name: (full, records[full]) for name, full in names.items() if name in own}
    unknown = []
    for name in sorted(names.keys() - given.keys()):
        bare = FOREIGN_WRAPPERS.sub("", name)
        if bare in own and bare not in given:
            given[bare] = (names[name], records[names[name]])
        else:
            unknown.append(name)
    problems = [f"checkpoint: does not have the model's tensor {name}" for name in sorted(own.keys() - given.keys())]
    problems += [f"checkpoint: has {name}, but the model does not" for name in unknown]
    problems += [
        f"checkpoint: {name} has shape {list(given[name][1].shape)}, but the model's has {list(own[name].shape)}"
        for name in sorted(own.keys() & given.keys())
        if list(own[name].shape) != list(given[name][1].shape)
    ]
    return {given[name][0]: tensor for name, tensor in own.items() if name in given}, problems


def extra_states(model: nn.Module) -> dict[str, Any]:
    """Return the model's encoded extra states, by module name.

    Raises:
        ConfigurationError: An extra state cannot be saved.
    """
    return {
        _join(name, EXTRA_STATE): encode(module.get_extra_state(), f"model: get_extra_state() of {name or 'the model'}")
        for name, module in bare_modules(model)
        if _has_extra_state(module)
    }


def set_extra_states(model: nn.Module, encoded: Mapping[str, Any]) -> None:
    """Restore the states returned by :func:`extra_states`."""
    for name, module in bare_modules(model):
        if _has_extra_state(module) and _join(name, EXTRA_STATE) in encoded:
            module.set_extra_state(decode(encoded[_join(name, EXTRA_STATE)]))


def problems_of_other_extra_states(model: nn.Module, encoded: Mapping[str, Any]) -> list[str]:
    """Return one message for each extra state that only the model or only the checkpoint has."""
    own = {_join(name, EXTRA_STATE) for name, module in bare_modules(model) if _has_extra_state(module)}
    problems = [f"checkpoint: does not have the model's extra state {name}" for name in sorted(own - encoded.keys())]
    return problems + [f"checkpoint: has {name}, but the model does not" for name in sorted(encoded.keys() - own)]


def problems_of_model(model: nn.Module) -> list[str]:
    """Return one message for each part of a model's state that a checkpoint would not contain."""
    sharded = [
        name
        for name, module in bare_modules(model)
        if any(k.__module__.startswith(SHARDED) for k in type(module).__mro__)
    ]
    if sharded:
        return [f"model: {sharded[0] or 'the model'} is sharded; pass a model that is not sharded"]
    named = named_tensors(model)
    problems = []
    for name, tensor in {**named.parameters, **named.buffers}.items():
        problem = tensor_problem(tensor)
        if not name.isprintable():
            problems.append(f"model: {name!r}: the name contains unprintable characters; rename the module")
        elif problem is not None:
            problems.append(f"model: {name} {problem}; pass a model of plain tensors that is not sharded")
        elif overlaps_itself(tensor):
            problems.append(
                f"model: elements of {name} share memory (as in a tensor made by expand), so it can be saved but "
                "not loaded; add .clone()"
            )
    if problems:
        return problems
    return _problems_of_extra_states(model) + _uncovered(model, named)


def _problems_of_extra_states(model: nn.Module) -> list[str]:
    problems = [
        f"model: {name or 'the model'} has get_extra_state() without set_extra_state(), so its state cannot be loaded; "
        "define both, or keep the state in a buffer"
        for name, module in bare_modules(model)
        if _has_extra_state(module) and type(module).set_extra_state is nn.Module.set_extra_state
    ]
    try:
        extra_states(model)
    except ConfigurationError as error:
        problems += error.problems
    return problems


def _uncovered(model: nn.Module, named: NamedTensors) -> list[str]:
    """Return one message for each entry in the model's state_dict that a checkpoint would not contain."""
    held = [*named.parameters.values(), *named.buffers.values()]
    identities = {id(tensor) for tensor in held}
    places = {_place(tensor) for tensor in held}
    return [
        f"model: its state_dict() has {name}, which is not a parameter or persistent buffer and would be lost; "
        "register it as a buffer"
        for name, value in model.state_dict(keep_vars=True).items()
        if not name.endswith(EXTRA_STATE)
        and not (isinstance(value, Tensor) and (id(value) in identities or _place(value) in places))
    ]


def overlaps_itself(tensor: Tensor) -> bool:
    """Return True if all elements along a dimension share memory. torch rejects writes to such a tensor.

    Source: https://docs.pytorch.org/docs/2.13/generated/torch.Tensor.expand.html (2026-11).
    """
    repeats = any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return repeats and tensor.numel() > 0


def _has_extra_state(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state


def _place(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...], torch.dtype]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
