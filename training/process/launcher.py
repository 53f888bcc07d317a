"""The launcher: starts a node's ranks, and reports each rank that exits. It never terminates the other ranks.

It sets the same environment variables as torchrun, so scripts for torchrun need no change. Three differences matter
when a node is lost: torchrun kills a node's remaining ranks as soon as one fails, it hosts the store in its own
process, and it waits for the other nodes. Here, the supervisor decides which ranks to terminate, and rank 0 hosts the
store (training/process/store.py), so this process imports only the standard library.

A stop signal is forwarded to the ranks. Like torchrun, the launcher kills ranks that are still running 30 s later.
Sources: https://docs.pytorch.org/docs/stable/elastic/run.html (environment variables) and
https://github.com/pytorch/pytorch/issues/119856 (30 s), both 2026-11.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

GRACE_SECONDS = 30.0
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_POLL_SECONDS = 0.02


class Rank(Protocol):
    """A rank's process."""

    @property
    def pid(self) -> int | None:
        """The process id."""

    def poll(self) -> int | None:
        """Return the exit code, negative after a signal, or None while the process is running."""


@dataclass(frozen=True)
class LaunchPlan:
    """The ranks to start on this node.

    Attributes:
        nodes: number of nodes.
        node_rank: this node's rank.
        processes: number of ranks on each node.
        master_address: address of the store, on the first node.
        master_port: its port.
        exits: directory for the records of ranks that have exited.
        arguments: `-m`, the module, and the arguments of each rank.
    """

    nodes: int
    node_rank: int
    processes: int
    master_address: str
    master_port: int
    exits: Path
    arguments: tuple[str, ...]

    @property
    def ranks(self) -> range:
        """Return the global ranks of this node."""
        return range(self.node_rank * self.processes, (self.node_rank + 1) * self.processes)

    def variables(self, rank: int) -> dict[str, str]:
        """Return the environment variables of a rank."""
        world_size = self.nodes * self.processes
        values: dict[str, object] = {
            "RANK": rank,
            "LOCAL_RANK": rank - self.ranks.start,
            "WORLD_SIZE": world_size,
            "LOCAL_WORLD_SIZE": self.processes,
            "GROUP_RANK": self.node_rank,
            "GROUP_WORLD_SIZE": self.nodes,
            "ROLE_NAME": "default",
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": world_size,
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": self.master_port,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "TORCHELASTIC_RUN_ID": "none",
            # Every rank connects to the store as a client; `store` hosts it in rank 0.
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "TRAINSTACK_STORE_HOST": "rank 0",
        }
        return {name: str(value) for name, value in values.items()}


def parse(arguments: Sequence[str]) -> LaunchPlan:
    """Return the plan described by a command line. Its options have torchrun's names."""
    parser = argparse.ArgumentParser(prog="python -m training.process.launcher", description=__doc__)
    parser.add_argument("--nnodes", type=int, required=True, help="number of nodes")
    parser.add_argument("--node-rank", type=int, required=True, help="this node's rank")
    parser.add_argument("--nproc-per-node", type=int, required=True, help="number of ranks per node")
    parser.add_argument("--master-addr", required=True, help="address of the first node")
    parser.add_argument("--master-port", type=int, required=True, help="port of the store on the first node")
    parser.add_argument("--exits", type=Path, required=True, help="directory for records of ranks that have exited")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, required=True, help="module and its arguments")
    options = parser.parse_args(arguments)
    return LaunchPlan(
        options.nnodes,
        options.node_rank,
        options.nproc_per_node,
        options.master_addr,
        options.master_port,
        options.exits,
        ("-m", *options.module),
    )


def launch(plan: LaunchPlan, start: Callable[[int], Rank]) -> int:
    """Start the ranks with `start`, and report each exit until none is running; return 0, or 1 if any rank failed."""
    received: list[tuple[int, float]] = []
    for number in FORWARDED:
        signal.signal(number, lambda number, frame: received.append((number, time.monotonic())))
    running = {rank: start(rank) for rank in plan.ranks}
    forwarded = has_failed = False
    while running:
        for rank, process in list(running.items()):
            code = process.poll()
            if code is not None:
                del running[rank]
                _report(plan.exits, rank, process.pid, code)
                has_failed |= code != 0
        if received and not forwarded:
            forwarded = True
            _send(running.values(), received[0][0])
        if received and time.monotonic() > received[0][1] + GRACE_SECONDS:
            _send(running.values(), signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    return int(has_failed)


def _send(ranks: Iterable[Rank], number: int) -> None:
    for each in ranks:
        if each.poll() is None and each.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, number)


def _report(directory: Path, rank: int, pid: int | None, code: int) -> None:
    """Write `rank-<%05d>.json`: `{rank, pid, exit_code}`. The supervisor reads it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"rank-{rank:05d}.json"
    temporary = path.with_suffix(".json.unfinished")
    temporary.write_text(json.dumps({"schema_version": 1, "rank": rank, "pid": pid, "exit_code": code}))
    temporary.replace(path)
    if code < 0:
        sys.stderr.write(f"launcher: rank {rank} (pid {pid}) ended by {_name(-code)}\n")
        sys.stderr.flush()


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def start_process(plan: LaunchPlan, inherited: Mapping[str, str]) -> Callable[[int], Rank]:
    """Return a function that starts a rank as a new Python process."""

    def start(rank: int) -> Rank:
        return subprocess.Popen(
            [sys.executable, *plan.arguments],
            env={**inherited, **plan.variables(rank)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    return start


def main() -> int:
    """Run this process's command line."""
    plan = parse(sys.argv[1:])
    return launch(plan, start_process(plan, os.environ))


if __name__ == "__main__":
    sys.exit(main())
