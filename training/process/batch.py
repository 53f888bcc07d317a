"""Batches and the unit that losses are averaged over: the targets that count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Batch:
    """A micro-batch on the device.

    Attributes:
        arguments: positional arguments for the model, which returns the mean loss over the batch's targets.
        targets: number of targets that count, the weight of that mean; 0 if there are none.
    """

    arguments: tuple[Any, ...]
    targets: float


@dataclass(frozen=True)
class LossTerms:
    """The number of targets that count in a global batch, by which the trainer divides the sum of their losses.

    Attributes:
        count: the number of targets over all ranks, or an estimate, which is a power of two. Dividing by a power of two
            does not round, so the estimate does not change the result.
        is_exact: False if the number is known only after all ranks have fetched their shares.
    """

    count: float
    is_exact: bool = True
