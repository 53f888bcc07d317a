"""Measures step times by phase without synchronizing with the GPU.

On a GPU, marks are CUDA events in its stream. The time between two events includes the time for which the GPU waited
for the host. The events are read together with the step's loss, one step later.
"""

from __future__ import annotations

import time
from typing import Literal

import torch

Phase = Literal["data", "forward", "backward", "communication", "optimizer"]
PHASES: tuple[Phase, ...] = ("data", "forward", "backward", "communication", "optimizer")


class Laps:
    """One step's phase marks.

    Args:
        device: device that computes the step.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[tuple[Phase | None, float | torch.cuda.Event]] = [(None, self._now())]
        self._last_bucket: float | torch.cuda.Event | None = None

    def mark(self, phase: Phase) -> None:
        """Assign the time since the last mark to ``phase``."""
        if phase == "backward" and self._last_bucket is not None:
            self._marks.append(("backward", self._last_bucket))
            self._last_bucket = None
            phase = "communication"
        self._marks.append((phase, self._now()))

    def bucket_is_ready(self) -> None:
        """Mark a gradient bucket as ready. After the last bucket, the backward pass only waits for the other ranks."""
        self._last_bucket = self._now()

    def seconds(self) -> dict[Phase, float]:
        """Return the seconds of each phase. On a GPU, call this only after the device has passed the last mark."""
        total = dict.fromkeys(PHASES, 0.0)
        for (_, begin), (phase, end) in zip(self._marks, self._marks[1:], strict=False):
            assert phase is not None, "only the first mark has no phase"
            total[phase] += _between_seconds(begin, end)
        return total

    def _now(self) -> float | torch.cuda.Event:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _between_seconds(begin: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(begin, float) and isinstance(end, float):
        return end - begin
    assert not isinstance(begin, float) and not isinstance(end, float), "all marks of a step have the same type"
    return float(begin.elapsed_time(end)) / 1000.0
