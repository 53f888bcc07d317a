"""From the order of a machine to the first step: what each part takes on a machine with 8 GPUs, and who says so.

The machine stages 20 GiB to its own disks. Its steps and their order are those of `bootstrap.boot`. Times that AWS does
not publish are of whoever measured them; what only runs here was measured here, in the emulated cloud on 2 cores, with
all files in memory, or is said to be assumed (a root volume fresh from its snapshot reads slower).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.boot.critical_path import Task
from bootstrap.plan import Step

GPUS = 8
DATASET_GIB = 20.0
S3_CONNECTIONS = 16
S3_CONNECTION_BYTES_PER_SECOND = 85e6
S3_FIRST_BYTE_SECONDS = 0.2

_LAUNCH = (
    "https://github.com/brevdev/ec2-coldboot-research (2026-11-28): 25.8 s, of them 19 % RunInstances, 69 % pending"
)
_S3 = "https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html (2026-11): "
_HERE = "measured here (2026-11-28, boot_step events of `make demo`)"
_PERSISTENCE = "https://docs.nvidia.com/deploy/driver-persistence/overview.html (2026-11-28): 1-3 s a GPU to initialize"
_ATTACH = "https://github.com/kubernetes/kubernetes/issues/62119 (2018-04): 17 s from attach to mounted"


@dataclass(frozen=True)
class Latency:
    """One row of the table.

    Attributes:
        seconds: that it takes.
        source: who says so, and when.
        remedy: what would shorten it.
    """

    seconds: float
    source: str
    remedy: str = "nothing that is worth it"


BEFORE_BOOT = {
    "launch": Latency(
        0.88 * 25.8, _LAUNCH, "a warm pool of stopped machines, or one machine too many: both are paid for; capacity "
        "reserved ahead saves the waiting before this"
    ),
    "machine_boot": Latency(
        0.12 * 25.8, f"{_LAUNCH}, 12 % boot to SSH", "an image that starts fewer services; fast snapshot restore of it"
    ),
    "shim": Latency(1.5, _S3 + "0.2 s to the first byte; and aws-cli's start, assumed", "a bundle in the image"),
}  # fmt: skip
"""One after the other, before the first step of the boot."""

STEPS = {
    "identity": Latency(0.02, _HERE),
    "instance_checks": Latency(
        3.0 * GPUS, f"{_PERSISTENCE}; the most, {GPUS} times",
        "nvidia-persistenced in the image: the GPUs are then up before the first step",
    ),
    "machine_settings": Latency(0.004, _HERE),
    "fabric": Latency(0.1, "assumed: one start of `fi_info`"),
    "wheelhouse": Latency(
        2.4 + 0.8 + S3_FIRST_BYTE_SECONDS,
        f"measured here (2026-11-28): venv and pip, 32 wheels; {_S3}85 MB/s of the 68 MB, one connection",
        "packages in the image: only what lacks there is installed",
    ),
    "python_env": Latency(3.8, _HERE, "fast snapshot restore of the image: what is slow is to read torch"),
    "run_document": Latency(0.12, _HERE),
    "code": Latency(0.29 + S3_FIRST_BYTE_SECONDS, f"{_HERE}; {_S3}0.2 s to the first byte"),
    "local_disks": Latency(0.3, "assumed: mdadm and mkfs.xfs -K; mkfs.ext4 of 1 TiB took 0.2 s here (2026-11-28)"),
    "volumes": Latency(0.04, f"{_HERE}; a volume of the launch template is attached before the machine boots"),
    "shared_storage": Latency(0.04, _HERE),
    "staging": Latency(
        DATASET_GIB * 1024**3 / (S3_CONNECTIONS * S3_CONNECTION_BYTES_PER_SECOND),
        f"{_S3}85 MB/s a connection, {S3_CONNECTIONS} of them, {DATASET_GIB:g} GiB",
        "data.stream_cache_gib: the trainer then reads the dataset while it trains",
    ),
    "trainer_ready": Latency(0.07, _HERE),
}  # fmt: skip
"""By the name of the step of `bootstrap.boot`."""

AFTER_BOOT = {
    "supervisor": Latency(0.6, "assumed: start of an interpreter, and one look at the control records"),
    "election": Latency(1.0, "measured by this program: the last supervisor_started to generation_started"),
    "trainer_start": Latency(
        5.0, "measured by this program: generation_started to the trainer's start record",
        "processes that have torch imported already",
    ),
    "first_step": Latency(0.5, "measured by this program: the smallest model; add compilation, where it is on"),
}  # fmt: skip
"""One after the other, after the last step of the boot."""


OF_AN_ATTACHED_VOLUME = {
    "volumes": Latency(17.0, _ATTACH, "let the launch template make the volume: it is there before the machine boots"),
    "staging": Latency(0.2, f"{_S3}0.2 s to the first byte: the index; the dataset is on the volume"),
}
"""What differs on a machine that attaches a volume which holds the dataset, instead of fetching it."""


def table() -> dict[str, Latency]:
    """Return every row, in order."""
    return {**BEFORE_BOOT, **STEPS, **AFTER_BOOT}


def tasks(steps: Sequence[Step], differences: Mapping[str, Latency]) -> list[Task]:
    """Return the graph from order to first step, with the real steps of the boot in the middle.

    Args:
        steps: of the boot.
        differences: rows that replace those of the table.

    Raises:
        KeyError: A step is not in the table.
    """
    graph: list[Task] = []
    rows = {**table(), **differences}
    for name in BEFORE_BOOT:
        graph.append(Task(name, (graph[-1].name,) if graph else (), rows[name].seconds))
    first = graph[-1].name
    graph.extend(Task(step.name, step.after or (first,), rows[step.name].seconds) for step in steps)
    waits: tuple[str, ...] = tuple(step.name for step in steps)
    for name in AFTER_BOOT:
        graph.append(Task(name, waits, rows[name].seconds))
        waits = (name,)
    return graph
