"""Collation of a user-supplied dataset's samples: batches, and the number of targets in each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from training.data.samples import NO_TARGET
from training.errors import ConfigurationError, TrainingError
from training.process.batch import Batch
from training.user_code import shown

TARGETS_OF = "the number of terms in the mean that the model returns for the batch, such as (batch[1] != -100).sum()"
PADDED_TYPES = (torch.int64, torch.int32, torch.int16)


class Collated(NamedTuple):
    """A batch on the host. It is a tuple, so torch's DataLoader pins its tensors.

    Attributes:
        batch: the result of the dataset's ``collate_fn``.
        targets: number of targets, excluding padding.
    """

    batch: Any
    targets: float


class Collate:
    """Creates a batch and counts its targets, with the dataset's ``collate_fn`` and ``targets_of`` or torch's default.

    Without ``targets_of``, every sample counts as one target.

    Raises:
        ConfigurationError: The dataset has a ``collate_fn``, but no ``targets_of``.
    """

    def __init__(self, dataset: Any) -> None:
        self._collate: Callable[[list[Any]], Any] = getattr(dataset, "collate_fn", None) or default_collate
        self._targets_of: Callable[[Any], Any] | None = getattr(dataset, "targets_of", None)
        self._is_default = self._collate is default_collate
        self.counts_samples = self._targets_of is None
        if self.counts_samples and not self._is_default:
            raise ConfigurationError(
                [
                    f"data.function: {type(dataset).__qualname__} has collate_fn but no targets_of; add a method "
                    f"targets_of(batch), {TARGETS_OF}"
                ]
            )

    def __call__(self, items: list[Any]) -> Collated:
        """Return the batch of these samples and its number of targets."""
        batch = self._batch(items)
        return Collated(batch, self._targets(batch, len(items)))

    def _targets(self, batch: Any, samples: int) -> float:
        if self._targets_of is None:
            if _has_padding(batch):
                raise TrainingError(
                    f"data.function: a batch contains {NO_TARGET}, which marks padding, so its samples may differ in "
                    f"weight; give the dataset a method targets_of(batch), {TARGETS_OF}"
                )
            return samples
        targets = self._targets_of(batch)
        number = targets.item() if isinstance(targets, (Tensor, np.generic)) and not targets.shape else targets
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < math.inf:
            raise TrainingError(
                f"data.function: targets_of returned {shown(targets)}; it must return a number of at least 0, "
                f"{TARGETS_OF}"
            )
        return number

    def _batch(self, items: list[Any]) -> Any:
        try:
            return self._collate(items)
        except (RuntimeError, TypeError) as error:
            if not self._is_default:
                raise
            raise TrainingError(
                f"data.function: cannot collate samples ({str(error).splitlines()[0]}); give the dataset a "
                "method collate_fn(items) that pads them to equal length with training.data.padding.pad, and a method "
                "targets_of(batch)"
            ) from error


def on_device(collated: Collated, device: torch.device) -> Batch:
    """Return a batch as arguments for a model, with the tensors on the device."""
    moved = _moved(collated.batch, device)
    return Batch(moved if isinstance(moved, tuple) else (moved,), collated.targets)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: _moved(each, device) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_moved(each, device) for each in value)
    return value


def bytes_of(value: Any) -> int:
    """Return the bytes in a batch's tensors."""
    if isinstance(value, Tensor):
        return value.nbytes
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    return sum(bytes_of(each) for each in values)


def _has_padding(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dtype in PADDED_TYPES and bool((value == NO_TARGET).any())
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    return any(_has_padding(each) for each in values)
