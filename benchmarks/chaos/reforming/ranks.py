"""Ranks, each the only one on its node, and the handovers that their supervisors would write."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.boot.network import Network, inside
from benchmarks.chaos.metrics import read_records
from benchmarks.chaos.ranks import start_forkserver
from bootstrap.supervise.membership.records import GenerationRecord, Member
from bootstrap.supervise.trainers.trainer import handover_text

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

_PHASE = re.compile(r"generation (\d+): phase (\w+)")
_DONE = re.compile(r"generation (\d+) continues")


@dataclass
class Place:
    """An address at which one rank can run.

    Attributes:
        address: its address.
        namespace: its network namespace; None: the loopback interface.
    """

    address: str
    namespace: str | None


@dataclass
class Rank:
    """One rank.

    Attributes:
        name: its name.
        directory: its run directory.
        place: where it runs.
        process: its process.
    """

    name: str
    directory: Path
    place: Place
    process: ForkServerProcess

    @property
    def is_alive(self) -> bool:
        """Whether the process is running or stopped."""
        return self.process.is_alive()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the rank, but not to its writer process, which a killed trainer leaves behind as well."""
        if self.process.pid is not None and self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def end(self) -> None:
        """Kill the rank and all processes in its session."""
        if self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
        self.process.join()

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Return the records that this rank has written as rank 0."""
        return read_records(self.directory, kind)

    def log(self) -> str:
        """Return the rank's log."""
        path = self.directory / "stderr"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def formed(self) -> int | None:
        """Return the generation in whose training loop the rank is; None before its first."""
        try:
            return int(json.loads((self.directory / "formed" / "local-00.json").read_text())["generation"])
        except FileNotFoundError:
            return None

    def phase(self) -> str:
        """Return the phase of a change in which the rank is, or was when it ended.

        `training` between changes, and `building` before a rank takes part.
        """
        log = self.log()
        begun = list(_PHASE.finditer(log))
        done = list(_DONE.finditer(log))
        if not begun or (done and done[-1].start() > begun[-1].start()):
            return "building" if self.formed() is None else "training"
        return begun[-1][2]

    def ending(self) -> str:
        """Return the outcome and its message, without numbers, so that equal causes are counted together."""
        found = sorted((self.directory / "outcomes").glob("rank-*.json"), key=lambda path: path.stat().st_mtime)
        if not found:
            return f"exit code {self.process.exitcode}"
        outcome = json.loads(found[-1].read_text(encoding="utf-8"))
        message = str(outcome["message"]).splitlines()[:1]
        return re.sub(r"\d[\d.:]*", "N", f"{outcome['outcome']}: {message[0] if message else ''}")[:160]


class Nodes:
    """Starts ranks, and hands generations to them.

    Args:
        root: folder for the run directories.
        dataset: the dataset.
        config: the training config.
        network: virtual network with one namespace per rank; None: the loopback interface.
        places: greatest number of ranks that exist at once.
    """

    def __init__(
        self, root: Path, dataset: Path, config: Mapping[str, Any], network: Network | None, places: int
    ) -> None:
        self._context = start_forkserver()
        root.mkdir()
        self._root, self._dataset, self._config, self._network = root, dataset, config, network
        self._free: list[Place] = []
        for number in range(1, places + 1):
            name, address = network.join(number) if network else (None, "127.0.0.1")
            self._free.append(Place(address, name))
        self._started: list[Rank] = []
        self._retired: set[str] = set()
        self.checkpoints = str(root / "store")

    def start(
        self, generation: int, ranks: Sequence[int], world_size: int, master: Rank | None, port: int
    ) -> list[Rank]:
        """Start these ranks of a generation.

        Args:
            generation: the generation's number.
            ranks: their ranks; if 0 is not among them, they join the running gang.
            world_size: the generation's number of ranks.
            master: the generation's rank 0; None: the first rank that is started.
            port: port of the store.
        """
        started: list[Rank] = []
        for rank in ranks:
            place = self._free.pop(0)
            name = f"node-{len(self._started)}"
            directory = self._root / name
            directory.mkdir()
            (directory / "config.json").write_text(json.dumps(self._config), encoding="utf-8")
            address = place.address if not started and master is None else (master or started[0]).place.address
            variables = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": 1}
            environment = {key: str(value) for key, value in variables.items()}
            environment |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
            environment |= {"TRAINSTACK_STORE_HOST": "rank 0", "TORCHELASTIC_USE_AGENT_STORE": "True"}
            if place.namespace is not None:
                environment["GLOO_SOCKET_IFNAME"] = "eth0"
            arguments = [
                *("train", "--config", str(directory / "config.json"), "--dataset", str(self._dataset)),
                *("--checkpoints", self.checkpoints, "--run-directory", str(directory)),
                *("--generation", str(generation), *([] if 0 in ranks else ["--joins"])),
            ]
            process = self._context.Process(
                target=_run, args=(arguments, environment, str(directory / "stderr"), place.namespace)
            )
            process.start()
            each = Rank(name, directory, place, process)
            started.append(each)
            self._started.append(each)
        return started

    def hand_over(
        self,
        generation: int,
        members: Sequence[Rank],
        port: int,
        *,
        survivors: int,
        planned: bool,
        to: Sequence[Rank],
    ) -> None:
        """Write a generation's handover for some ranks."""
        nodes = tuple(Member(each.name, each.place.address) for each in members)
        first = nodes[0]
        record = GenerationRecord(generation, "", nodes, first.address, port, first.instance_id, survivors, planned)
        for rank in to:
            path = rank.directory / "generation.json.unfinished"
            path.write_text(handover_text(record, record.rank_of(rank.name)), encoding="utf-8")
            path.replace(rank.directory / "generation.json")

    def free_port(self, place: Place | None = None) -> int:
        """Return a port that is free at a place; None: at the next place that is used."""
        place = place or self._free[0]
        with inside(place.namespace), socket.socket() as probe:
            probe.bind((place.address, 0))
            return int(probe.getsockname()[1])

    def disconnect(self, rank: Rank) -> None:
        """Drop all packets from and to a rank's node."""
        assert self._network is not None and rank.place.namespace is not None
        self._network.disconnect(rank.place.namespace)

    def reconnect(self, rank: Rank) -> None:
        """Undo `disconnect`."""
        assert self._network is not None and rank.place.namespace is not None
        self._network.reconnect(rank.place.namespace)

    def retire(self, rank: Rank) -> None:
        """End a rank and its writer process, and use its place again."""
        rank.end()
        if rank.name not in self._retired:
            self._retired.add(rank.name)
            if self._network is not None:
                self.reconnect(rank)
            self._free.append(rank.place)

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Return the records of all ranks in order of time."""
        found = [record for rank in self._started for record in rank.records(kind)]
        return sorted(found, key=lambda each: float(each["unix_seconds"]))

    def close(self) -> None:
        """End all ranks."""
        for rank in self._started:
            rank.end()


def _run(arguments: list[str], environment: dict[str, str], stderr: str, namespace: str | None) -> None:
    """Run a trainer process in a network namespace."""
    os.setsid()
    os.environ.update(environment)
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.chdir(Path(stderr).parent)
    with ExitStack() as stack:
        stack.enter_context(inside(namespace))
        from training.__main__ import main

        sys.exit(main(arguments))
