"""Steps whose result is not yet known to all: read back late, so that nothing waits, and judged before a save.

A GPU runs behind the process that feeds it. Reading a loss at once would make the process wait for the GPU and the GPU
for the process; read one step later it is there already.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from training.distributed import Gang, Votes
from training.errors import NonFiniteLossError
from training.step_result import StepResult
from training.stopwatch import Laps, Phase


@dataclass(frozen=True)
class StepReport:
    """What is known of a step, the same on all ranks but for the seconds.

    Attributes:
        step: optimizer steps done after it.
        loss: mean cross-entropy of the global batch, nats per token.
        learning_rate: that it used.
        gradient_norm: before clipping.
        step_seconds: from the end of the step before to its own end, as the feeding process saw it.
        phase_seconds: of this rank's device, by phase.
        checkpoint_seconds: that the loop spent on a save after the step before; part of step_seconds.
        skipped: whether it moved no weight, since its loss or gradient was not finite.
    """

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    step_seconds: float
    phase_seconds: Mapping[Phase, float] = field(default_factory=dict)
    checkpoint_seconds: float = 0.0
    skipped: bool = False


class _Readback:
    """Numbers on their way from the device to the host."""

    def __init__(self, numbers: Tensor) -> None:
        self._host = numbers
        self._event: torch.cuda.Event | None = None
        if numbers.device.type == "cuda":
            self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._host.copy_(numbers, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def values(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
        return [float(value) for value in self._host.tolist()]


class Ballot:
    """Votes after every step, with the results of earlier ones.

    Args:
        gang: the voters.
        tolerates_infinite_gradients: whether a gradient scaler skips such steps.
        most_skipped_steps: steps in a row whose loss or gradient may be other than finite before the run fails.
    """

    def __init__(self, gang: Gang, tolerates_infinite_gradients: bool, most_skipped_steps: int = 0) -> None:
        self._gang = gang
        self._tolerates_infinite_gradients = tolerates_infinite_gradients
        self._lag_steps = 1 if gang.device.type == "cuda" else 0
        self._most_skipped_steps = most_skipped_steps
        self._skipped_in_a_row = 0
        self._unread: deque[tuple[StepReport, _Readback, Laps]] = deque()
        self._voted_on: StepReport | None = None
        self._reports: list[StepReport] = []

    def add(
        self, step: int, result: StepResult, learning_rate: float, step_seconds: float, checkpoint_seconds: float = 0.0
    ) -> None:
        """Take in a step, without waiting for its numbers."""
        numbers = _Readback(torch.stack([result.loss.detach().double(), result.gradient_norm.detach().double()]))
        report = StepReport(step, 0.0, learning_rate, 0.0, step_seconds, checkpoint_seconds=checkpoint_seconds)
        self._unread.append((report, numbers, result.laps))

    def post(self, votes: Votes) -> None:
        """Vote, and send the oldest result that should have arrived."""
        if len(self._unread) > self._lag_steps:
            votes = self._with_oldest(votes)
        self._gang.post(votes)

    def collect(self) -> Votes:
        """Sums of the votes posted last; zeros if none are out.

        Raises:
            NonFiniteLossError: on all ranks alike, naming the step where it began.
        """
        agreed = self._gang.collect()
        if agreed is None:
            return Votes()
        if self._voted_on is not None:
            report = replace(self._voted_on, loss=agreed.loss, skipped=bool(agreed.non_finite))
            self._voted_on = None
            self._skipped_in_a_row = self._skipped_in_a_row + 1 if report.skipped else 0
            if self._skipped_in_a_row > self._most_skipped_steps:
                raise NonFiniteLossError(report.step - self._skipped_in_a_row + 1, report.loss, report.gradient_norm)
            self._reports.append(report)
        return agreed

    def settle(self) -> None:
        """Wait until every step so far is known to be sound on all ranks.

        Raises:
            NonFiniteLossError: one is not.
        """
        self.collect()
        while self._unread:
            self._gang.post(self._with_oldest(Votes()))
            self.collect()

    def forget(self) -> None:
        """Leave out the steps that are not known yet: the run goes back to before them. All ranks do so together."""
        self._gang.collect()
        self._unread.clear()
        self._voted_on = None
        self._skipped_in_a_row = 0
        self._reports = []

    @property
    def reports(self) -> tuple[StepReport, ...]:
        """Steps that became known since they were taken last."""
        return tuple(self._reports)

    def take_reports(self) -> list[StepReport]:
        """Steps that became known since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def _with_oldest(self, votes: Votes) -> Votes:
        report, numbers, laps = self._unread.popleft()
        loss, gradient_norm = numbers.values()
        self._voted_on = replace(report, gradient_norm=gradient_norm, phase_seconds=laps.seconds())
        sound = math.isfinite(loss) and (self._tolerates_infinite_gradients or math.isfinite(gradient_norm))
        return replace(votes, loss=loss, non_finite=float(not sound))
