"""Deferred control flags: the ranks' flags and step results are all-reduced and then collected one step later.

A GPU lags behind the process that launches its work. If the process read a loss immediately, it would wait for the GPU,
and the GPU would then wait for the process. One step later, the value has already arrived. Before a save, all results
are collected.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from training.errors import GateError, NonFiniteLossError
from training.loop.step_result import StepReport, StepResult
from training.process.distributed import ControlFlags, Gang
from training.process.reform.ledger import StepLedger
from training.process.stopwatch import Laps


class _Readback:
    """An asynchronous copy of values from the device to the host."""

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


class DeferredFlags:
    """Control flags. Each step posts them together with the result of an earlier step.

    Args:
        gang: ranks that participate in the all-reduce.
        tolerates_infinite_gradients: True if a gradient scaler skips steps with infinite gradients.
        max_skipped_steps: maximum number of consecutive steps with a non-finite loss or gradient before the run fails.
        ledger: ledger to which every completed step is added; None: steps have no gate.
    """

    def __init__(
        self,
        gang: Gang,
        tolerates_infinite_gradients: bool,
        max_skipped_steps: int = 0,
        ledger: StepLedger | None = None,
    ) -> None:
        self._gang = gang
        self._ledger = ledger
        self._tolerates_infinite_gradients = tolerates_infinite_gradients
        self._lag_steps = 1 if gang.device.type == "cuda" else 0
        self._max_skipped_steps = max_skipped_steps
        self._unread: deque[tuple[StepReport, _Readback, Laps]] = deque()
        self._posted: StepReport | None = None
        self._reports: list[StepReport] = []
        self.consecutive_skips = 0

    def add(
        self, step: int, result: StepResult, learning_rate: float, step_seconds: float, checkpoint_seconds: float = 0.0
    ) -> None:
        """Add the result of a step without waiting for its values."""
        values = [result.loss.detach().double(), result.gradient_norm.detach().double()]
        # Without a gate, only the sum over the ranks is the step's loss.
        passed = torch.full_like(values[0], self._gang.world_size) if result.passed is None else result.passed
        numbers = _Readback(torch.stack([*values, passed]))
        report = StepReport(step, 0.0, learning_rate, 0.0, step_seconds, checkpoint_seconds=checkpoint_seconds)
        self._unread.append((report, numbers, result.laps))

    def post(self, flags: ControlFlags) -> None:
        """Start an all-reduce of this rank's flags and the oldest result that should have arrived by now."""
        if len(self._unread) > self._lag_steps:
            flags = self._with_oldest_result(flags)
        self._gang.post(flags)

    def collect(self) -> ControlFlags:
        """Return the sums of the most recently posted flags; zeros if none were posted.

        Raises:
            NonFiniteLossError: Too many consecutive steps were not finite. Raised on all ranks. The error contains the
                first such step.
        """
        agreed = self._gang.collect()
        if agreed is None:
            return ControlFlags()
        if self._posted is not None:
            loss = agreed.loss if self._ledger is None else self._posted.loss
            report = replace(self._posted, loss=loss, skipped=bool(agreed.non_finite))
            self._posted = None
            self.consecutive_skips = self.consecutive_skips + 1 if report.skipped else 0
            if self.consecutive_skips > self._max_skipped_steps:
                raise NonFiniteLossError(report.step - self.consecutive_skips + 1, report.loss, report.gradient_norm)
            self._reports.append(report)
        return agreed

    def drain(self) -> None:
        """Collect the results of all steps so far.

        Raises:
            NonFiniteLossError: Too many consecutive steps were not finite; see :meth:`collect`.
        """
        self.collect()
        while self._unread:
            self._gang.post(self._with_oldest_result(ControlFlags()))
            self.collect()

    def discard(self) -> None:
        """Discard all pending results and reports when the run rolls back. All ranks call it together."""
        self._gang.collect()
        self._unread.clear()
        self._posted = None
        self.consecutive_skips = 0
        self._reports = []

    def recover(self) -> list[StepReport]:
        """Return the reports of all completed steps that the loop has not taken yet. This does not use a collective.

        Every value is the same on all ranks, because each step's gate has summed the loss. Steps after the first that
        was aborted are dropped: none of them has changed a weight.
        """
        found = [*self._reports, *([] if self._posted is None else [self._posted])]
        self._reports, self._posted = [], None
        try:
            while self._unread:
                found.append(self._read_oldest())
        except GateError:
            self._unread.clear()
        return found

    def restart(self, reports: Iterable[StepReport], consecutive_skips: int) -> None:
        """Continue with these reports after the gang has been re-formed."""
        self._unread.clear()
        self._posted, self._reports, self.consecutive_skips = None, list(reports), consecutive_skips

    @property
    def reports(self) -> tuple[StepReport, ...]:
        """Reports collected since the last call to :meth:`take_reports`."""
        return tuple(self._reports)

    def take_reports(self) -> list[StepReport]:
        """Return the reports collected since the last call, and clear them."""
        reports, self._reports = self._reports, []
        return reports

    def _with_oldest_result(self, flags: ControlFlags) -> ControlFlags:
        self._posted = self._read_oldest()
        return replace(flags, loss=self._posted.loss, non_finite=float(self._posted.skipped))

    def _read_oldest(self) -> StepReport:
        """Read the oldest result, and add its step to the ledger.

        Raises:
            GateError: A collective of the step was aborted, so no rank has applied it.
        """
        report, numbers, laps = self._unread.popleft()
        loss, gradient_norm, passed = numbers.values()
        if self._ledger is not None:
            if passed != self._gang.world_size:
                raise GateError(f"step {report.step}: a collective was aborted; the weights have not changed")
            self._ledger.note(report.step, loss, gradient_norm)
        is_finite = math.isfinite(loss) and (self._tolerates_infinite_gradients or math.isfinite(gradient_norm))
        seconds = laps.seconds()
        return replace(report, loss=loss, gradient_norm=gradient_norm, phase_seconds=seconds, skipped=not is_finite)
