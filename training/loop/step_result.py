"""The result of an optimizer step: first on the device, then, after all ranks have received it, on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from training.process.stopwatch import Laps, Phase


@dataclass(frozen=True)
class StepResult:
    """Tensors that a step may still be computing on the device.

    Attributes:
        loss: this rank's share of the loss, a scalar. The sum over all ranks is the mean over all tokens.
        gradient_norm: global gradient norm before clipping, a scalar that is the same on all ranks.
        laps: durations of the step's phases.
        passed: number of ranks that have passed the step's gate; None without a gate. With a gate, ``loss`` is already
            the sum over all ranks.
    """

    loss: Tensor
    gradient_norm: Tensor
    laps: Laps
    passed: Tensor | None = None


@dataclass(frozen=True)
class StepReport:
    """A step's results. All values except the durations are the same on all ranks.

    Attributes:
        step: optimizer steps completed, including this one.
        loss: mean cross-entropy of the global batch in nats per token.
        learning_rate: learning rate used in the step.
        gradient_norm: global gradient norm before clipping.
        step_seconds: time from the end of the previous step to the end of this one, on the host.
        phase_seconds: duration of each phase on this rank's device.
        checkpoint_seconds: time that the loop spent on a save after the previous step, included in step_seconds.
        skipped: True if the step did not update the weights because its loss or gradient was not finite.
    """

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    step_seconds: float
    phase_seconds: Mapping[Phase, float] = field(default_factory=dict)
    checkpoint_seconds: float = 0.0
    skipped: bool = False
