"""What the loop learns of a step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from training.stopwatch import Laps


@dataclass(frozen=True)
class StepResult:
    """What a step leaves behind, on the device, not waited for.

    Attributes:
        loss: this rank's share, such that the sum over all ranks is the mean over all tokens. Scalar.
        gradient_norm: before clipping; the same on all ranks. Scalar.
        laps: where the time went.
    """

    loss: Tensor
    gradient_norm: Tensor
    laps: Laps
