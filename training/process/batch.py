"""Batches, and the number of targets over which losses are averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Batch:
    """A micro-batch on the device.

    Attributes:
        arguments: positional arguments for the model, which returns the mean loss over the batch's targets.
        targets: number of targets, excluding padding: the weight of that mean. May be 0.
    """

    arguments: tuple[Any, ...]
    targets: float


@dataclass(frozen=True)
class LossTerms:
    """The number of targets in a global batch, excluding padding: the divisor for the sum of their losses.

    Attributes:
        count: the number of targets over all ranks, or an estimate that is a power of two. Dividing by a power of two
            does not round, so the estimate does not change the result.
        is_exact: False if the number is known only after all ranks have fetched their shares.
    """

    count: float
    is_exact: bool = True
