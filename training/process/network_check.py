"""The network check: times an all-reduce across all processes before the first step.

Bus bandwidth measures the load on the links independently of the number of processes n:
bytes / seconds * 2 (n - 1) / n.
Source (2026-11): https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.
"""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from training.config.parallel import ParallelConfig
from training.errors import TrainingError
from training.process.distributed import Gang

logger = logging.getLogger(__name__)

EXPECTED_VARIABLE = "TRAINSTACK_NETWORK_GBPS"
"""Variable with this instance type's network bandwidth in each direction, in Gbit/s. The node program sets it."""
MIN_HEALTHY_SHARE = 0.5
"""Minimum share of the network bandwidth. On healthy nodes, NCCL reaches 0.8 or more. Over TCP, it reaches 0.1, or less
without an adapter.

Source (2026-11): https://github.com/aws-samples/awsome-distributed-training (micro-benchmarks/nccl-tests).
"""
BYTES_ON_GPU, BYTES_ON_CPU = 1 << 29, 1 << 22
WARM_UPS, REPETITIONS = 2, 5


@dataclass(frozen=True)
class NetworkMeasurement:
    """An all-reduce measurement.

    Attributes:
        bytes: size of each process's buffer.
        processes: number of processes.
        seconds: median time on the slowest process.
        expected_gb_per_second: network bandwidth in GB/s (10^9 bytes); None if unknown, or on a single node.
    """

    bytes: int
    processes: int
    seconds: float
    expected_gb_per_second: float | None

    @property
    def gb_per_second(self) -> float:
        """Bus bandwidth in GB/s."""
        return bus_bandwidth(self.bytes, self.processes, self.seconds) / 1e9

    @property
    def is_healthy(self) -> bool:
        """True if the bandwidth is at least MIN_HEALTHY_SHARE of the expected bandwidth, or the latter is unknown."""
        expected = self.expected_gb_per_second
        return expected is None or self.gb_per_second >= MIN_HEALTHY_SHARE * expected


def bus_bandwidth(size_bytes: int, processes: int, seconds: float) -> float:
    """Return an all-reduce's bus bandwidth in bytes per second."""
    return size_bytes / seconds * 2 * (processes - 1) / processes


def check_network(settings: ParallelConfig, gang: Gang, write_record: Callable[..., None]) -> None:
    """Measure and record the network bandwidth if the settings enable the check. All ranks call it together.

    Args:
        settings: parallelism settings.
        gang: all ranks.
        write_record: function that writes a metric record, given its kind and values.

    Raises:
        TrainingError: ``network_test`` is ``require`` and the network is too slow. Raised on every rank.
    """
    if settings.network_test == "off" or gang.world_size == 1:
        return
    measured = measure_network(gang)
    write_record(
        "network",
        bytes=measured.bytes,
        processes=measured.processes,
        seconds=measured.seconds,
        gb_per_second=round(measured.gb_per_second, 3),
        expected_gb_per_second=measured.expected_gb_per_second,
        healthy=measured.is_healthy,
    )
    if measured.is_healthy:
        return
    message = (
        f"all-reduce across {measured.processes} processes: {measured.gb_per_second:.1f} GB/s, expected up to "
        f"{measured.expected_gb_per_second:.1f} GB/s: it runs over TCP, or an adapter or link is faulty; check the "
        "nodes' `instance_fault` events and the NCCL lines in their logs, replace the nodes, or set "
        "training.config.parallel.network_test: report"
    )
    if settings.network_test == "require":
        raise TrainingError(message)
    if gang.rank == 0:
        logger.warning("%s", message)


def measure_network(gang: Gang) -> NetworkMeasurement:
    """Time an all-reduce across all processes. This takes one or two seconds and memory for one buffer."""
    on_gpu = gang.device.type == "cuda"
    size = BYTES_ON_GPU if on_gpu else BYTES_ON_CPU
    buffer = torch.zeros(size // 4, dtype=torch.float32, device=gang.device)
    times = []
    for _ in range(WARM_UPS + REPETITIONS):
        started = time.perf_counter()
        dist.all_reduce(buffer)
        if on_gpu:
            torch.cuda.synchronize(gang.device)
        times.append(time.perf_counter() - started)
    del buffer
    if on_gpu:
        torch.cuda.empty_cache()
    network_gbps = os.environ.get(EXPECTED_VARIABLE)
    spans_nodes = gang.world_size > gang.local_world_size
    expected = float(network_gbps) / 8 if network_gbps and spans_nodes else None
    reports = gang.gather((statistics.median(times[WARM_UPS:]), expected))
    # All ranks must use the same numbers; otherwise, only some of them might fail.
    expectations = [each for _, each in reports if each is not None]
    slowest = max(seconds for seconds, _ in reports)
    return NetworkMeasurement(size, gang.world_size, slowest, min(expectations, default=None))
