"""The command line and the environment that start a generation's trainers on this node.

Command line: docs/architecture.md, section 6. How the processes are watched is in `trainer`.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bootstrap.collectives import collective_variables, plugin_variables
from bootstrap.documents import NodeDocument, RunDocument
from bootstrap.instance_fabric import fabric_of
from bootstrap.layout import Layout
from bootstrap.prepared.dataset import stored_dataset
from bootstrap.supervise.records import GenerationRecord

# Static rendezvous waits so long for the gang; torchrun's own default is ten minutes of paid silence.
RENDEZVOUS_TIMEOUT_SECONDS = 90
TRAINER_MARK = "TRAINSTACK_TRAINER_OF"
# Source: linux/sockios.h
_SIOCGIFADDR = 0x8915
_IS_LINUX = sys.platform.startswith("linux")


@dataclass(frozen=True)
class Launch:
    """What is known when trainers are started."""

    node: NodeDocument
    run: RunDocument
    record: GenerationRecord
    rank: int
    address: str
    interpreter: str
    layout: Layout
    instance_type: str = ""

    @property
    def directory(self) -> Path:
        """The run directory of the generation."""
        return self.layout.run_directory(self.run.run, self.record.generation)

    @property
    def global_ranks(self) -> range:
        """The ranks of this node's processes."""
        first = self.rank * self.run.processes_per_node
        return range(first, first + self.run.processes_per_node)

    @property
    def world_size(self) -> int:
        """Processes of the whole gang."""
        return len(self.record.members) * self.run.processes_per_node


LaunchCommand = Callable[[Launch], "list[str]"]
"""Makes the command line; the seam at which tests put another program than torchrun."""


def torchrun_command(launch: Launch) -> list[str]:
    """Return the command line of one static torchrun."""
    return [launch.interpreter, "-m", "torch.distributed.run", *torchrun_arguments(launch)]


def torchrun_arguments(launch: Launch) -> list[str]:
    """Return torchrun's own arguments, and after them the trainer's."""
    return [
        f"--nnodes={len(launch.record.members)}",
        f"--node-rank={launch.rank}",
        f"--nproc-per-node={launch.run.processes_per_node}",
        f"--master-addr={launch.record.master_address}",
        f"--master-port={launch.record.master_port}",
        "--max-restarts=0",
        f"--rdzv-conf=timeout={RENDEZVOUS_TIMEOUT_SECONDS}",
        "-m",
        "training",
        *trainer_arguments(launch),
    ]


def trainer_arguments(launch: Launch) -> list[str]:
    """Return the trainer's own arguments."""
    return [
        "train",
        "--config",
        str(launch.directory / "run.json"),
        "--dataset",
        str(launch.layout.dataset(launch.run.dataset)),
        "--dataset-url",
        f"s3://{launch.node.dataset_bucket}/datasets/{stored_dataset(launch.layout, launch.run)}",
        "--checkpoints",
        checkpoint_store(launch),
        "--run-directory",
        str(launch.directory),
        "--generation",
        str(launch.record.generation),
    ]


def checkpoint_store(launch: Launch, is_mount: Callable[[str], bool] = os.path.ismount) -> str:
    """Return where checkpoints go: S3, and before it the checkpoint volume when this node has it mounted."""
    prefix = f"runs/{launch.run.run}/checkpoints"
    durable = f"s3://{launch.node.checkpoint_bucket}/{prefix}"
    # Looked at, not taken from the document: another node may hold the volume, and the root disk is no substitute.
    mounts = [each.mount for each in launch.node.volumes if each.kind == "checkpoint" and is_mount(each.mount)]
    return f"{mounts[0]}/{prefix},{durable}" if mounts else durable


def trainer_environment(launch: Launch, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the trainers: this process's own, and what they need to find code and peers."""
    environment = dict(inherited)
    environment["PYTHONPATH"] = str(launch.layout.code(launch.run.code.sha256))
    environment["PYTHONUNBUFFERED"] = "1"
    environment[TRAINER_MARK] = str(launch.layout.root)
    environment.setdefault("AWS_REGION", launch.node.region)
    environment.setdefault("AWS_DEFAULT_REGION", launch.node.region)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // launch.run.processes_per_node)))
    interface = interface_of(launch.address)
    fabric = launch.node.fabric
    for name, value in collective_variables(fabric=fabric, run_directory=launch.directory, interface=interface).items():
        environment.setdefault(name, value)
    network_gbps = fabric_of(launch.instance_type).network_gbps
    if network_gbps is not None:
        environment["TRAINSTACK_NETWORK_GBPS"] = str(network_gbps)
    if fabric == "efa":
        environment.update(plugin_variables(environment))
    return environment


def available_cores() -> int:
    """Return the cores that this process may run on."""
    if _IS_LINUX:
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def interface_of(address: str) -> str | None:
    """Return the network interface that owns an IPv4 address, or None when it cannot be told.

    The whole of 127.0.0.0/8 belongs to the loop-back interface, which only shows its first address.
    """
    if not _IS_LINUX:
        return None
    if address.startswith("127."):
        return "lo"
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def free_port() -> int:
    """Return a TCP port that is free on every address of this machine, because the rendezvous store takes them all."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
