"""How long each rank computes before it waits for the others, and what its GPU says: which rank holds up the gang."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping
from typing import Any

import torch

from training.assembly import Run
from training.stopwatch import Phase

logger = logging.getLogger(__name__)

SLOW_FACTOR = 1.2
"""Times the median at which a rank is called slow."""


class RankReport:
    """Adds up each rank's own time, and compares the ranks now and then.

    Args:
        run: whose ranks.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._gpu = _open_gpu(run.gang.device)
        self._own_seconds = 0.0
        self._waiting_seconds = 0.0
        self._steps = 0

    def note(self, phase_seconds: Mapping[Phase, float]) -> None:
        """Take in a step of this rank."""
        waiting = phase_seconds.get("communication", 0.0)
        self._own_seconds += sum(phase_seconds.values()) - waiting
        self._waiting_seconds += waiting
        self._steps += 1

    def report(self) -> None:
        """Compare, write a record, and name a slow rank; all ranks call it at the same step."""
        own: dict[str, float] = {
            "own_seconds": self._own_seconds / max(1, self._steps),
            "communication_seconds": self._waiting_seconds / max(1, self._steps),
            **_health(self._gpu),
        }
        self._own_seconds = self._waiting_seconds = 0.0
        self._steps = 0
        ranks = self._run.gang.gather(own)
        seconds = [rank["own_seconds"] for rank in ranks]
        slowest = max(range(len(seconds)), key=seconds.__getitem__)
        median = statistics.median(seconds)
        ratio = seconds[slowest] / median if median > 0 else 1.0
        self._run.metrics.write(
            "ranks", step=self._run.state.step, slowest_rank=slowest, slowest_over_median=ratio, ranks=ranks
        )
        if self._run.is_main and len(ranks) > 1 and ratio > SLOW_FACTOR:
            logger.warning(
                "rank %d computes %.3f s a step, %.2f times the median, and all wait",
                slowest,
                seconds[slowest],
                ratio,
            )


def _open_gpu(device: torch.device) -> Any:
    """NVML's handle of the GPU, by its UUID: NVML's own numbers know nothing of CUDA_VISIBLE_DEVICES; None without."""
    if device.type != "cuda":
        return None
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        logger.info("the package nvidia-ml-py is not installed: no temperature, clocks and power in the metrics")
        return None
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError as error:
        logger.info(
            "the driver does not tell about %s (%s): no temperature, clocks and power in the metrics", device, error
        )
        return None


def _health(gpu: Any) -> dict[str, float]:
    """Of utilisation and memory, the node's own monitor tells; here is what makes one GPU slower than others."""
    if gpu is None:
        return {}
    import pynvml

    try:
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):  # an older driver's name for it
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
    return {
        "temperature_celsius": pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
        "clock_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "most_clock_mhz": pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "power_watts": pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000.0,
        "utilization_percent": pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "slowed_by_heat": int(bool(reasons & pynvml.nvmlClocksEventReasonSwThermalSlowdown)),
    }
