"""The rank report: each rank's compute time and GPU health, and the rank that the others wait for."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping
from typing import Any

import torch

from training.observe.metrics import MetricsFile
from training.process.distributed import Gang
from training.process.stopwatch import Phase

logger = logging.getLogger(__name__)

SLOW_FACTOR = 1.2
"""A rank is considered slow if its compute time exceeds the median by more than this factor."""


class RankReport:
    """Accumulates this rank's compute time, and periodically compares it with the other ranks' times.

    Args:
        gang: ranks to compare.
        metrics: metrics file that receives the `ranks` records.
    """

    def __init__(self, gang: Gang, metrics: MetricsFile) -> None:
        self._gang, self._metrics = gang, metrics
        self._gpu = _open_gpu(gang.device)
        self._own_seconds = 0.0
        self._waiting_seconds = 0.0
        self._steps = 0

    def note(self, phase_seconds: Mapping[Phase, float]) -> None:
        """Add the phase times for one of this rank's steps."""
        waiting = phase_seconds.get("communication", 0.0)
        self._own_seconds += sum(phase_seconds.values()) - waiting
        self._waiting_seconds += waiting
        self._steps += 1

    def report(self, step: int) -> None:
        """Compare the ranks, write a record, and log a slow rank. All ranks call it at the same step."""
        own: dict[str, float] = {
            "own_seconds": self._own_seconds / max(1, self._steps),
            "communication_seconds": self._waiting_seconds / max(1, self._steps),
            **_health(self._gpu),
        }
        self._own_seconds = self._waiting_seconds = 0.0
        self._steps = 0
        ranks = self._gang.gather(own)
        seconds = [rank["own_seconds"] for rank in ranks]
        slowest = max(range(len(seconds)), key=seconds.__getitem__)
        median = statistics.median(seconds)
        ratio = seconds[slowest] / median if median > 0 else 1.0
        self._metrics.write("ranks", step=step, slowest_rank=slowest, slowest_over_median=ratio, ranks=ranks)
        if self._gang.rank == 0 and len(ranks) > 1 and ratio > SLOW_FACTOR:
            logger.warning(
                "rank %d is slow: %.3f s per step, %.2f times the median; the other ranks wait for it",
                slowest,
                seconds[slowest],
                ratio,
            )


def _open_gpu(device: torch.device) -> Any:
    """Return NVML's handle for the GPU by UUID (NVML indexes ignore CUDA_VISIBLE_DEVICES); None if unavailable."""
    if device.type != "cuda":
        return None
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        logger.info("nvidia-ml-py is not installed; metrics will not include GPU temperature, clocks and power")
        return None
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError as error:
        logger.info(
            "NVML failed for %s (%s); metrics will not include GPU temperature, clocks and power", device, error
        )
        return None


def _health(gpu: Any) -> dict[str, float]:
    """Return measurements that can explain a slow GPU. The node program monitors memory and errors."""
    if gpu is None:
        return {}
    import pynvml

    try:
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):  # the error's name in older drivers
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
    return {
        "temperature_celsius": pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
        "clock_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "max_clock_mhz": pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "power_watts": pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000.0,
        "utilization_percent": pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "thermal_slowdown": int(bool(reasons & pynvml.nvmlClocksEventReasonSwThermalSlowdown)),
    }
