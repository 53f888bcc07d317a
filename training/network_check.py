"""All-reduce over the whole gang before the first step, timed: is the network between the nodes what it should be.

Bus bandwidth is what the links carry, whatever the number of processes: bytes / seconds * 2 (n - 1) / n.
Source (2026-11): https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.
"""

from __future__ import annotations

import logging
import os
import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from training.distributed import Gang
from training.errors import TrainingError
from training.metrics import MetricsFile
from training.parallel_settings import ParallelConfig

logger = logging.getLogger(__name__)

EXPECTED_VARIABLE = "TRAINSTACK_NETWORK_GBPS"
"""Set by the node program: what the network of this instance type carries each way, Gbit/s."""
SOUND_SHARE = 0.5
"""Of the network's bandwidth. NCCL reaches 0.8 and more on sound nodes, a tenth over TCP, less without a card.

Source (2026-11): https://github.com/aws-samples/awsome-distributed-training (micro-benchmarks/nccl-tests).
"""
BYTES_ON_GPU, BYTES_ON_CPU = 1 << 29, 1 << 22
WARM_UPS, TIMES = 2, 5


@dataclass(frozen=True)
class NetworkMeasurement:
    """What one all-reduce took.

    Attributes:
        bytes: that each process contributed.
        processes: of the gang.
        seconds: of the slowest process, the middle of several times.
        expected_gb_per_second: of a sound network, GB/s (10^9 bytes); None when nothing is known, or on one node.
    """

    bytes: int
    processes: int
    seconds: float
    expected_gb_per_second: float | None

    @property
    def gb_per_second(self) -> float:
        """Bus bandwidth, GB/s."""
        return bus_bandwidth(self.bytes, self.processes, self.seconds) / 1e9

    @property
    def is_sound(self) -> bool:
        """Whether it is not far below what is expected."""
        expected = self.expected_gb_per_second
        return expected is None or self.gb_per_second >= SOUND_SHARE * expected


def bus_bandwidth(size_bytes: int, processes: int, seconds: float) -> float:
    """Return the bus bandwidth of an all-reduce, bytes per second."""
    return size_bytes / seconds * 2 * (processes - 1) / processes


def require_sound_network(settings: ParallelConfig, gang: Gang, metrics: MetricsFile) -> None:
    """Measure the network when the settings say so, and record it; all ranks call this.

    Raises:
        TrainingError: on every rank, when it must be sound and is not.
    """
    if settings.network_test == "off" or gang.world_size == 1:
        return
    measured = measure_network(gang)
    metrics.write(
        "network",
        bytes=measured.bytes,
        processes=measured.processes,
        seconds=measured.seconds,
        gb_per_second=round(measured.gb_per_second, 3),
        expected_gb_per_second=measured.expected_gb_per_second,
        sound=measured.is_sound,
    )
    if measured.is_sound:
        return
    message = (
        f"all-reduce over {measured.processes} processes: {measured.gb_per_second:.1f} GB/s, the network of these "
        f"nodes gives {measured.expected_gb_per_second:.1f}: it goes over TCP, or a node's adapters or links are bad; "
        "see `instance_fault` of the nodes and NCCL's lines in their logs, replace the nodes, or set "
        "training.config.parallel.network_test: report"
    )
    if settings.network_test == "require":
        raise TrainingError(message)
    if gang.rank == 0:
        logger.warning("%s", message)


def measure_network(gang: Gang) -> NetworkMeasurement:
    """Time all-reduce over all processes; a second or two, and the memory of one buffer meanwhile."""
    on_gpu = gang.device.type == "cuda"
    size = BYTES_ON_GPU if on_gpu else BYTES_ON_CPU
    buffer = torch.zeros(size // 4, dtype=torch.float32, device=gang.device)
    took = []
    for _ in range(WARM_UPS + TIMES):
        started = time.perf_counter()
        dist.all_reduce(buffer)
        if on_gpu:
            torch.cuda.synchronize(gang.device)
        took.append(time.perf_counter() - started)
    del buffer
    if on_gpu:
        torch.cuda.empty_cache()
    network_gbps = os.environ.get(EXPECTED_VARIABLE)
    spans_nodes = gang.world_size > gang.local_world_size
    expected = float(network_gbps) / 8 if network_gbps and spans_nodes else None
    reports = gang.gather((statistics.median(took[WARM_UPS:]), expected))
    # Every rank judges by the same numbers, or some would go on alone.
    expectations = [each for _, each in reports if each is not None]
    slowest = max(seconds for seconds, _ in reports)
    return NetworkMeasurement(size, gang.world_size, slowest, min(expectations, default=None))
