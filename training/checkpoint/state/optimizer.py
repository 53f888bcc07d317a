"""An optimizer's state: tensors by name, other values as JSON, and its parameter groups.

A tensor directly in a parameter's state is named `optimizer/<parameter>/<key>`. All other state, such as SparseAdam's
step count (an int) or LBFGS's history (lists of tensors), is JSON with references to named tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from training.checkpoint.manifest import OptimizerRecord
from training.checkpoint.state.model import Form, overlaps_itself
from training.checkpoint.state.values import decode, encode, tensor_problem
from training.errors import ConfigurationError

STATE = "optimizer/"
NESTED = "optimizer-values/"
"""Prefixes of tensor names: for tensors directly in a parameter's state, and for tensors in its lists and other
values."""
OF_THE_PROCESS = frozenset({"params", "param_names"})
"""Group entries that are not saved. The parameters' names are saved instead."""

WRAPPERS = {
    ("accelerate.optimizer", "AcceleratedOptimizer"): "optimizer",
    ("lightning.pytorch.core.optimizer", "LightningOptimizer"): "optimizer",
    ("pytorch_lightning.core.optimizer", "LightningOptimizer"): "optimizer",
    ("lightning.fabric.wrappers", "_FabricOptimizer"): "optimizer",
    ("lightning_fabric.wrappers", "_FabricOptimizer"): "optimizer",
}
"""Each wrapper's module and class, and the attribute with the wrapped optimizer. Types are compared by name, because
the packages need not be installed. Source: accelerate 1.15, lightning 2.6."""

Names = Mapping[nn.Parameter, str]


def bare_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer without Accelerate's and Lightning's wrappers, which hold neither its state nor its
    hooks."""
    for kind in type(optimizer).__mro__:
        if (kind.__module__, kind.__qualname__) in WRAPPERS:
            return bare_optimizer(getattr(optimizer, WRAPPERS[kind.__module__, kind.__qualname__]))
    return optimizer


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """Return an optimizer's module and class."""
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


Known = WeakValueDictionary[str, Tensor]
"""Previously checked tensors, by name. Checking every tensor at every save would take most of the save's time."""


def capture(
    optimizer: torch.optim.Optimizer, names: Names, known: Known | None = None
) -> tuple[dict[str, Tensor], OptimizerRecord]:
    """Return the tensors in an optimizer's state by name, and everything else.

    Args:
        optimizer: optimizer for the model's parameters.
        names: parameter names, by parameter.
        known: previously checked tensors; this function adds the tensors that it checks.

    Raises:
        ConfigurationError: Part of the optimizer's state cannot be saved; the message identifies it.
    """
    outside = _outside(optimizer, names)
    if outside:
        raise ConfigurationError(outside)
    known = WeakValueDictionary() if known is None else known
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    found: dict[int, str] = {}
    storages: dict[int, str] = {}

    def put(name: str, path: str, tensor: Tensor) -> str:
        if id(tensor) in found:
            return found[id(tensor)]
        if known.get(name) is not tensor:
            _check(tensor, path, storages)
            known[name] = tensor
        found[id(tensor)], tensors[name] = name, tensor
        return name

    for parameter, state in optimizer.state.items():
        if not isinstance(parameter, nn.Parameter) or parameter not in names:
            raise ConfigurationError(
                [f"optimizer: its state has an entry for {_shown(parameter)}, which is not a parameter of the model"]
            )
        name = names[parameter]
        other: dict[Any, Any] = {}
        for key, value in state.items():
            simple = type(key) is str and "/" not in key and isinstance(value, Tensor) and id(value) not in found
            if simple:
                put(f"{STATE}{name}/{key}", f"optimizer: its {key} of {name}", value)
            else:
                other[key] = value
        if other:
            nested = partial(_put_nested, put, tensors, name)
            values[name] = encode(other, f"optimizer: its state of {name}", nested)
    return tensors, OptimizerRecord(
        kind=kind_of(optimizer),
        groups=[
            encode(
                {key: each for key, each in group.items() if key not in OF_THE_PROCESS}, f"optimizer: group {number}"
            )
            for number, group in enumerate(optimizer.param_groups)
        ],
        parameters=[[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups],
        values=values,
    )


def _put_nested(
    put: Callable[[str, str, Tensor], str], tensors: Mapping[str, Tensor], owner: str, path: str, tensor: Tensor
) -> str:
    return put(f"{NESTED}{owner}/{len(tensors)}", path, tensor)


def problems_of_optimizer(optimizer: torch.optim.Optimizer, names: Names) -> list[str]:
    """Return one message for each part of an optimizer's state that a checkpoint would not contain."""
    outside = _outside(optimizer, names)
    if outside:
        return outside
    if any(kind.__module__.startswith("torch.distributed.optim") for kind in type(optimizer).__mro__):
        return [
            f"optimizer: {kind_of(optimizer)} divides its state among the ranks; use an optimizer that keeps "
            "all of its state on every rank"
        ]
    further = sorted(map(str, optimizer.state_dict().keys() - {"state", "param_groups"}))
    if further:
        return [f"optimizer: its state_dict() has {', '.join(further)}, which would be lost; keep it in the state"]
    try:
        capture(optimizer, names)
    except ConfigurationError as error:
        return error.problems
    return []


def _outside(optimizer: torch.optim.Optimizer, names: Names) -> list[str]:
    """Return one message for each parameter in the groups that is not in the model. Groups can be added at any time."""
    return [
        f"optimizer: group {number} has a parameter of shape {list(parameter.shape)} that is not in the model, and "
        "would be lost; make it part of the model"
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if parameter not in names
    ]


def problems_of_other(optimizer: torch.optim.Optimizer, names: Names, saved: OptimizerRecord) -> list[str]:
    """Return the reasons why saved state cannot be loaded into an optimizer: a different kind or different groups."""
    if kind_of(optimizer) != saved.kind:
        return [f"checkpoint: its optimizer is {saved.kind}, but this run's is {kind_of(optimizer)}"]
    own = [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    if len(own) != len(saved.parameters):
        groups = len(saved.parameters)
        return [f"checkpoint: its optimizer has {groups} parameter groups, but this run's has {len(own)}"]
    problems = []
    for number, (ours, theirs) in enumerate(zip(own, saved.parameters, strict=True)):
        moved = sorted(set(ours) ^ set(theirs))
        if moved:
            where = "this run's" if moved[0] in ours else "the checkpoint's"
            problems.append(
                f"checkpoint: {moved[0]} ({len(moved)} in total) is only in {where} optimizer group {number}"
            )
        elif ours != theirs and any(name.startswith(NESTED) for name in _references(saved.values)):
            problems.append(f"checkpoint: its optimizer group {number} has the same parameters in a different order")
    return problems


def device_of(parameter: nn.Parameter, key: str, group: Mapping[str, Any]) -> torch.device:
    """Return the device on which `Optimizer.load_state_dict` would place restored state.

    The step count stays on the host, except for kernels that require it on the parameter's device.
    Source: torch 2.13, torch/optim/optimizer.py, `_process_value_according_to_param_policy`.
    """
    if key == "step" and not (group.get("capturable") or group.get("fused")):
        return torch.device("cpu")
    return parameter.device


def make_state(
    optimizer: torch.optim.Optimizer,
    names: Names,
    records: Mapping[str, Form],
    values: Mapping[str, Any],
) -> dict[str, Tensor]:
    """Replace the optimizer's state with empty tensors that match the saved forms, and return them by name.

    Args:
        optimizer: optimizer to change.
        names: parameter names, by parameter.
        records: the saved tensors' forms, by name.
        values: encoded state other than tensors, by parameter.
    """
    made: dict[str, Tensor] = {}
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    for parameter in names:
        optimizer.state.pop(parameter, None)
    parameters = {name: parameter for parameter, name in names.items()}
    for name in sorted(records):
        if name.startswith((STATE, NESTED)):
            owner, _, key = name.removeprefix(NESTED).removeprefix(STATE).rpartition("/")
            parameter = parameters[owner]
            dtype = dtype_named(records[name])
            device = device_of(parameter, key, groups.get(parameter, {}))
            made[name] = torch.empty(tuple(records[name].shape), dtype=dtype, device=device)
            if name.startswith(STATE):
                optimizer.state[parameter][key] = made[name]
    for name, encoded in values.items():
        optimizer.state[parameters[name]].update(decode(encoded, made.__getitem__))
    return made


def owner_of(name: str) -> str:
    """Return the parameter to which a tensor in the optimizer's state belongs."""
    return name.removeprefix(NESTED).removeprefix(STATE).rpartition("/")[0]


def dtype_named(form: Form) -> torch.dtype:
    """Return a form's dtype."""
    return form.dtype if isinstance(form.dtype, torch.dtype) else getattr(torch, form.dtype)


def restore_groups(optimizer: torch.optim.Optimizer, saved: OptimizerRecord) -> None:
    """Restore the groups' learning rates and other values. Tensors remain the same objects, on the same device."""
    for group, encoded in zip(optimizer.param_groups, saved.groups, strict=True):
        for key, value in decode(encoded).items():
            own = group.get(key)
            if isinstance(own, Tensor) and isinstance(value, Tensor) and _same_form(own, value):
                with torch.no_grad():
                    own.copy_(value)
            else:
                group[key] = value


def _same_form(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _check(tensor: Tensor, path: str, storages: dict[int, str]) -> None:
    problem = tensor_problem(tensor)
    if problem is None and tensor.requires_grad:
        problem = "requires a gradient"
    if problem is None and tensor.numel() and overlaps_itself(tensor):
        problem = "is a tensor whose elements share memory"
    if problem is None and tensor.numel():
        other = storages.setdefault(tensor.untyped_storage().data_ptr(), path)
        if other != path:
            problem = f"shares memory with {other.removeprefix('optimizer: ')}"
    if problem is not None:
        raise ConfigurationError([f"{path} {problem}, and cannot be saved; use another optimizer"])


def _references(values: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    waiting: list[Any] = [dict(values)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            found.append(value)
    return found


def _shown(key: object) -> str:
    return f"a parameter of shape {list(key.shape)}" if isinstance(key, Tensor) else repr(key)
