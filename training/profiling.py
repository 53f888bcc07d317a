"""Traces of a few steps by torch's profiler, each by itself, so that memory and files stay bounded.

A profiler that is kept over a run keeps every event of it in memory
(https://github.com/pytorch/kineto/issues/953); here one lives for the steps of one trace.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from training.observation_settings import ProfileConfig

logger = logging.getLogger(__name__)

MIB = 1 << 20


class Profiler:
    """Begins and ends traces at the steps that the config names.

    Args:
        settings: which steps.
        folder: for the traces.
        first_step: that this start of the run takes.
    """

    def __init__(self, settings: ProfileConfig, folder: Path, first_step: int) -> None:
        self._settings = settings
        self._folder = folder
        self._begin: int | None = first_step + settings.first_step if settings.steps else None
        self._profile: profile | None = None

    def before_step(self, step: int) -> None:
        """Begin a trace, if step ``step`` is the first of one."""
        if self._profile is not None or self._begin is None or step < self._begin:
            return
        self._begin = step
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        self._profile.start()

    def after_step(self, step: int) -> None:
        """End the trace, if step ``step`` was its last one, and write it."""
        if self._profile is None or self._begin is None or step - self._begin + 1 < self._settings.steps:
            return
        self._profile.stop()
        path = self._folder / f"steps-{self._begin:08d}-{step:08d}.json.gz"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(path))
        self._profile = None
        interval = self._settings.interval_steps
        self._begin = None if interval is None else self._begin + max(interval, self._settings.steps)
        size_mib = path.stat().st_size / MIB
        if size_mib > self._settings.most_mib:
            path.unlink()
            logger.warning(
                "the trace of %d steps took %.0f MiB, more than profile.most_mib %d, and was removed; trace fewer",
                self._settings.steps,
                size_mib,
                self._settings.most_mib,
            )
        else:
            logger.info("%s: a trace of %d steps, for https://ui.perfetto.dev", path, self._settings.steps)
        for old in sorted(self._folder.glob("steps-*.json.gz"))[: -self._settings.keep]:
            old.unlink()

    def close(self) -> None:
        """Give up a trace that is not complete."""
        if self._profile is not None:
            self._profile.stop()
            self._profile = None
