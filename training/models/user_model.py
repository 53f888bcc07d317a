"""Builds user-supplied models, and checks the losses that they return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from training.errors import ConfigurationError
from training.user_code import call, shown


def build_model(path: str, options: Mapping[str, Any], **arguments: Any) -> nn.Module:
    """Build the user's model.

    Raises:
        ConfigurationError: The function did not return a module, or the module's parameters cannot be trained.
    """
    model = call(path, "model.function", options, **arguments)
    if not isinstance(model, nn.Module):
        raise ConfigurationError(
            [f"model.function: {path} returned {shown(model)}; it must return a torch.nn.Module (not its class)"]
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigurationError([f"model.function: {path} returned a model without trainable parameters"])
    unsupported = [
        f"model.function: {path}: parameter {name} has the type {parameter.dtype}, which the fused AdamW does not "
        "support; use a real floating-point type, such as that of torch.view_as_real(parameter)"
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and not parameter.is_floating_point()
    ]
    unsupported += [
        f"model.function: {path}: {name} has sparse gradients, which AdamW does not support; set sparse=False"
        for name, module in model.named_modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    ]
    if unsupported:
        raise ConfigurationError(unsupported)
    return model


class MeanLoss(nn.Module):
    """Wraps a user's model, and checks the mean loss that it returns.

    Args:
        model: model that accepts a batch as positional arguments, or as keyword arguments if the batch is a mapping.
        path: path to the model's function, for messages.

    Attributes:
        used: parameters that the loss depends on; by default, all trainable parameters.
    """

    def __init__(self, model: nn.Module, path: str) -> None:
        super().__init__()
        self.module = model
        self._path = path
        self.used = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def forward(self, *batch: Any, has_targets: bool = True) -> Tensor:
        """Return a batch's mean loss. Shapes: scalar.

        Without targets, there is no mean. The result is then 0 with zero gradients, so that the other ranks do not wait
        for this rank's gradients; the model does not run.
        """
        if not has_targets:
            return torch.cat([parameter.reshape(-1)[:0].float() for parameter in self.used]).sum()
        loss = self.module(**batch[0]) if len(batch) == 1 and isinstance(batch[0], Mapping) else self.module(*batch)
        if not isinstance(loss, Tensor) or loss.dim() != 0 or not loss.is_floating_point():
            raise ConfigurationError(
                [
                    f"model.function: the model from {self._path} returned {_shown(loss)} for a batch; forward must "
                    "return the mean loss, a floating-point tensor without dimensions"
                ]
            )
        return loss.float()


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {list(value.shape)}".replace("torch.", "")
    return shown(value)
