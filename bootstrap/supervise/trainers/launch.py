"""The command line and environment for a generation's trainers on this node.

docs/architecture.md, section 6, describes the command line. `trainer` monitors the processes.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bootstrap.documents import NodeDocument, RunDocument
from bootstrap.documents.object_keys import run_prefix
from bootstrap.gpus.collectives import collective_variables, plugin_variables
from bootstrap.layout import TRAINER_MARK, Layout
from bootstrap.prepare.dataset import stored_dataset
from bootstrap.supervise.membership.records import GenerationRecord
from hardware import instance_type

EXITS = "exits"
"""Name of the folder, in a generation's run directory, with the launcher's records of ranks that have exited."""
# Source: linux/sockios.h
_SIOCGIFADDR = 0x8915
_IS_LINUX = sys.platform.startswith("linux")


@dataclass(frozen=True)
class Launch:
    """Inputs for starting the trainers."""

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
        """Return the generation's run directory."""
        return self.layout.run_directory(self.run.run, self.record.generation)

    @property
    def global_ranks(self) -> range:
        """Return the global ranks of this node's processes."""
        first = self.rank * self.run.processes_per_node
        return range(first, first + self.run.processes_per_node)

    @property
    def world_size(self) -> int:
        """Return the number of processes on all nodes."""
        return len(self.record.members) * self.run.processes_per_node


LaunchCommand = Callable[[Launch], "list[str]"]
"""Returns the command line. Tests replace this function to start a program other than the launcher."""


def launcher_command(launch: Launch) -> list[str]:
    """Return the command line for the launcher (training/process/launcher.py)."""
    return [launch.interpreter, "-m", "training.process.launcher", *launcher_arguments(launch)]


def launcher_arguments(launch: Launch) -> list[str]:
    """Return the launcher's arguments, followed by the trainer's arguments."""
    options = launcher_options(
        nodes=len(launch.record.members),
        node_rank=launch.rank,
        processes_per_node=launch.run.processes_per_node,
        master_address=launch.record.master_address,
        master_port=launch.record.master_port,
        directory=launch.directory,
    )
    return [*options, "-m", "training", *trainer_arguments(launch)]


def launcher_options(
    *, nodes: int, node_rank: int, processes_per_node: int, master_address: str, master_port: int, directory: Path
) -> list[str]:
    """Return the launcher's own options. `directory`: the generation's run directory."""
    return [
        f"--nnodes={nodes}",
        f"--node-rank={node_rank}",
        f"--nproc-per-node={processes_per_node}",
        f"--master-addr={master_address}",
        f"--master-port={master_port}",
        f"--exits={directory / EXITS}",
    ]


def trainer_arguments(launch: Launch) -> list[str]:
    """Return the trainer's arguments."""
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
        *(["--joins"] if launch.record.survivors else []),
    ]


def checkpoint_store(launch: Launch, is_mount: Callable[[str], bool] = os.path.ismount) -> str:
    """Return the checkpoint store: S3, preceded by the checkpoint volume if this node has mounted it."""
    prefix = f"{run_prefix(launch.node.deployment, launch.run.run)}/checkpoints"
    durable = f"s3://{launch.node.checkpoint_bucket}/{prefix}"
    # Check the mount: if another node has the volume, this path is on the root disk, which must not be used.
    mounts = [each.mount for each in launch.node.volumes if each.kind == "checkpoint" and is_mount(each.mount)]
    return f"{mounts[0]}/{prefix},{durable}" if mounts else durable


def trainer_environment(launch: Launch, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the trainers' environment: this process's environment plus variables for code, AWS and collectives."""
    environment = dict(inherited)
    environment["PYTHONPATH"] = str(launch.layout.code(launch.run.code.sha256))
    environment[TRAINER_MARK] = str(launch.layout.root)
    add_machine_variables(
        environment,
        region=launch.node.region,
        processes_per_node=launch.run.processes_per_node,
        address=launch.address,
        fabric=launch.node.fabric,
        directory=launch.directory,
        machine=launch.instance_type,
    )
    return environment


def add_machine_variables(
    environment: dict[str, str],
    *,
    region: str,
    processes_per_node: int,
    address: str,
    fabric: str,
    directory: Path,
    machine: str,
) -> None:
    """Add the variables for AWS, threads and collectives to the trainers' environment. Existing values remain.

    Args:
        environment: The environment.
        region: AWS region.
        processes_per_node: Number of trainers that share the cores.
        address: This node's address.
        fabric: The network of collectives, `efa` or `tcp`.
        directory: Run directory.
        machine: Instance type; empty if unknown.
    """
    environment["PYTHONUNBUFFERED"] = "1"
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        environment.setdefault(name, region)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // processes_per_node)))
    collectives = collective_variables(fabric=fabric, run_directory=directory, interface=interface_of(address))
    for name, value in collectives.items():
        environment.setdefault(name, value)
    known = instance_type(machine)
    if known is not None and known.network_gbps is not None:
        environment["TRAINSTACK_NETWORK_GBPS"] = str(known.network_gbps)
    if fabric == "efa":
        environment.update(plugin_variables(environment))


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if _IS_LINUX:
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def interface_of(address: str) -> str | None:
    """Return the network interface of an IPv4 address, or None if unknown.

    All of 127.0.0.0/8 belongs to the loopback interface, which reports only its first address.
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


def free_port(address: str) -> int:
    """Return a free TCP port on this node's address for the rendezvous store."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
