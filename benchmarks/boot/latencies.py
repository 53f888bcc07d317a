"""Durations from an instance's launch to the first training step, for 8 GPUs, each with its source.

The node stages 20 GiB to its instance store. The steps and their order are those in `bootstrap.boot_steps`. Third-party
measurements provide times that AWS does not publish. Times for this project's own programs were measured in the
embedded cloud on 2 cores, with all files in the page cache (a new root volume reads more slowly), or are marked as
assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.boot.critical_path import Task
from bootstrap.boot_steps.step_runner import Step

GPUS = 8
DATASET_GIB = 20.0
S3_CONNECTIONS = 16
S3_CONNECTION_BYTES_PER_SECOND = 85e6
S3_FIRST_BYTE_SECONDS = 0.2

_LAUNCH = (
    "https://github.com/brevdev/ec2-coldboot-research (2026-11-28): 25.8 s, of which 19% RunInstances, 69% pending"
)
_S3 = "https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html (2026-11): "
_HERE = "measured here (2026-11-28, boot_step events of `make demo`)"
_PERSISTENCE = (
    "https://docs.nvidia.com/deploy/driver-persistence/overview.html (2026-11-28): 1-3 s per GPU to initialize"
)
_ATTACH = "https://github.com/kubernetes/kubernetes/issues/62119 (2018-04): 17 s from attach to mounted"


@dataclass(frozen=True)
class Latency:
    """A row of the table.

    Attributes:
        seconds: Duration.
        source: Source and date.
        remedy: How to shorten it.
    """

    seconds: float
    source: str
    remedy: str = "no worthwhile improvement"


BEFORE_BOOT = {
    "launch": Latency(
        0.88 * 25.8, _LAUNCH, "a warm pool of stopped instances, or a spare instance: both cost money; reserved "
        "capacity avoids the wait before the launch"
    ),
    "machine_boot": Latency(
        0.12 * 25.8, f"{_LAUNCH}, 12% boot to SSH", "an image with fewer services; fast snapshot restore for the image"
    ),
    "shim": Latency(1.5, _S3 + "0.2 s to the first byte; aws-cli startup, assumed", "the bundle in the image"),
}  # fmt: skip
"""Sequential tasks before the first boot step."""

STEPS = {
    "identity": Latency(0.02, _HERE),
    "instance_checks": Latency(
        3.0 * GPUS, f"{_PERSISTENCE}; the maximum, {GPUS} times",
        "nvidia-persistenced in the image: the GPUs are then initialized before the first step",
    ),
    "machine_settings": Latency(0.004, _HERE),
    "fabric": Latency(0.1, "assumed: one run of `fi_info`"),
    "wheelhouse": Latency(
        2.4 + 0.8 + S3_FIRST_BYTE_SECONDS,
        f"measured here (2026-11-28): venv and pip, 32 wheels; {_S3}68 MB at 85 MB/s, one connection",
        "packages in the image: only missing ones are installed",
    ),
    "python_env": Latency(3.8, _HERE, "fast snapshot restore for the image: reading torch is the slow part"),
    "run_document": Latency(0.12, _HERE),
    "code": Latency(0.29 + S3_FIRST_BYTE_SECONDS, f"{_HERE}; {_S3}0.2 s to the first byte"),
    "local_disks": Latency(0.3, "assumed: mdadm and mkfs.xfs -K; mkfs.ext4 of 1 TiB took 0.2 s here (2026-11-28)"),
    "volumes": Latency(0.04, f"{_HERE}; a volume in the launch template is attached before the instance boots"),
    "shared_storage": Latency(0.04, _HERE),
    "staging": Latency(
        DATASET_GIB * 1024**3 / (S3_CONNECTIONS * S3_CONNECTION_BYTES_PER_SECOND),
        f"{_S3}85 MB/s per connection, {S3_CONNECTIONS} connections, {DATASET_GIB:g} GiB",
        "data.stream_cache_gib: the trainer reads the dataset during training",
    ),
    "trainer_ready": Latency(0.07, _HERE),
}  # fmt: skip
"""Latencies by boot step name."""

AFTER_BOOT = {
    "supervisor": Latency(0.6, "assumed: interpreter startup, and one read of the control records"),
    "election": Latency(1.0, "measured by this program: from the last supervisor_started to generation_started"),
    "trainer_start": Latency(
        5.0, "measured by this program: from generation_started to the trainer's start record",
        "processes that have already imported torch",
    ),
    "first_step": Latency(0.5, "measured by this program: the smallest model, without compilation"),
}  # fmt: skip
"""Sequential tasks after the last boot step."""


OF_AN_ATTACHED_VOLUME = {
    "volumes": Latency(
        17.0, _ATTACH, "let the launch template create the volume: it is attached before the instance boots"
    ),
    "staging": Latency(0.2, f"{_S3}0.2 s to the first byte of the index; the dataset is on the volume"),
}
"""Differences on a node that attaches a volume with the dataset instead of downloading it."""


def table() -> dict[str, Latency]:
    """Return every row, in order."""
    return {**BEFORE_BOOT, **STEPS, **AFTER_BOOT}


def tasks(steps: Sequence[Step], differences: Mapping[str, Latency]) -> list[Task]:
    """Return the graph from launch to the first training step, with the real boot steps in between.

    Args:
        steps: The boot steps.
        differences: Rows that replace rows of the table.

    Raises:
        KeyError: A step is not in the table.
    """
    graph: list[Task] = []
    rows = {**table(), **differences}
    for name in BEFORE_BOOT:
        graph.append(Task(name, (graph[-1].name,) if graph else (), rows[name].seconds))
    first = graph[-1].name
    graph.extend(Task(step.name, step.after or (first,), rows[step.name].seconds) for step in steps)
    dependencies: tuple[str, ...] = tuple(step.name for step in steps)
    for name in AFTER_BOOT:
        graph.append(Task(name, dependencies, rows[name].seconds))
        dependencies = (name,)
    return graph
