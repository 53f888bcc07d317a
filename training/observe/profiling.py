"""Traces a few steps with torch's profiler, within limits on memory and file size.

A profiler that stays active for an entire run keeps all events in memory
(https://github.com/pytorch/kineto/issues/953). Each trace therefore uses its own profiler.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from training.config.observation import ProfileConfig

logger = logging.getLogger(__name__)

MIB = 1 << 20


class Profiler:
    """Starts and ends traces at the configured steps.

    Args:
        settings: profiler settings.
        folder: folder for the traces.
        first_step: step at which this process started or resumed the run.
    """

    def __init__(self, settings: ProfileConfig, folder: Path, first_step: int) -> None:
        self._settings = settings
        self._folder = folder
        self._begin: int | None = first_step + settings.first_step if settings.steps else None
        self._profile: profile | None = None

    def before_step(self, step: int) -> None:
        """Start a trace if ``step`` is a trace's first step."""
        if self._profile is not None or self._begin is None or step < self._begin:
            return
        self._begin = step
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        self._profile.start()

    def after_step(self, step: int) -> None:
        """End and write the trace if ``step`` was the trace's last step."""
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
        if size_mib > self._settings.max_mib:
            path.unlink()
            logger.warning(
                "removed the trace of %d steps: %.0f MiB exceed profile.max_mib %d; lower profile.steps",
                self._settings.steps,
                size_mib,
                self._settings.max_mib,
            )
        else:
            logger.info("%s: wrote a trace of %d steps; open it in https://ui.perfetto.dev", path, self._settings.steps)
        for old in sorted(self._folder.glob("steps-*.json.gz"))[: -self._settings.keep]:
            old.unlink()

    def close(self) -> None:
        """Discard an incomplete trace."""
        if self._profile is not None:
            self._profile.stop()
            self._profile = None
