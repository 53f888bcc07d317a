"""Nodes to measure, with real supervisors, launchers and trainers that share S3, SSM and CloudWatch Logs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.boot.network import Network, inside
from benchmarks.chaos.nodes import Node
from benchmarks.chaos.supervised import PARAMETER, RUN, Account
from benchmarks.servers.local_moto import endpoint_environment
from bootstrap.documents.decoding import SCHEMA_VERSION

# Four nodes that import torch on two busy cores take this long.
WAIT_SECONDS = 240.0
POLL_SECONDS = 0.02
GANG_TIMEOUT_SECONDS = 30
BOOT_TIMEOUT_SECONDS = 120
# Number of saves before a disturbance, so that the trainer has measured how long a save takes.
MIN_SAVES = 2
LOG_TAIL_BYTES = 2000

T = TypeVar("T")


class TooSlowError(RuntimeError):
    """A condition was not met in time; the message includes the nodes' logs."""


class Gang:
    """Nodes that train an endless run.

    Args:
        folder: Directory for the nodes' roots.
        account: The AWS account.
        code: The trainer's code bundle.
        dataset: Name of the dataset.
        nodes: Number of nodes in a complete gang; a gang with one node fewer can also train.
        config: The trainer's configuration.
        supervise: The supervisor's timings.
        network: Virtual network; if None, all nodes use the loopback interface.
        min_nodes: Number of nodes in the smallest gang; None: one fewer than `nodes`.
    """

    def __init__(
        self,
        folder: Path,
        account: Account,
        code: Mapping[str, str],
        dataset: str,
        nodes: int,
        config: Mapping[str, Any],
        supervise: Mapping[str, float],
        network: Network | None,
        min_nodes: int | None = None,
    ) -> None:
        self._folder, self._account, self._network = folder, account, network
        timings = {"gang_timeout_seconds": GANG_TIMEOUT_SECONDS, "boot_timeout_seconds": BOOT_TIMEOUT_SECONDS}
        self._document = {**account.node_document(), "supervise": {**supervise, **timings}}
        self._namespaces: dict[str, str] = {}
        self._launched = 0
        self.nodes: list[Node] = []
        self._lost: list[Node] = []
        run = {
            "schema_version": SCHEMA_VERSION,
            "deployment": "boot",
            "run": RUN,
            "nodes": nodes,
            "min_nodes": nodes - 1 if min_nodes is None else min_nodes,
            "processes_per_node": 1,
            "code": code,
            "dataset": dataset,
            "training": config,
        }
        account.ssm.put_parameter(Name=PARAMETER, Value=json.dumps(run), Type="String", Overwrite=True)

    def launch(self) -> Node:
        """Start the supervisor of a new, booted node."""
        self._launched += 1
        name, address = self._network.join(self._launched) if self._network else (None, None)
        with inside(name):
            node = Node(
                self._folder,
                self._launched,
                self._document,
                endpoint_environment(self._account.endpoint) | {"OMP_NUM_THREADS": "1"},
                address,
                ("nsenter", f"--net=/run/netns/{name}") if name else (),
            )
        if name:
            self._namespaces[node.instance_id] = name
        self.nodes.append(node)
        return node

    def lose(self, node: Node) -> None:
        """Kill a node without letting it send a packet, not even a reset."""
        if self._network:
            self._network.disconnect(self._namespaces[node.instance_id])
        self._forget(node)

    def freeze(self, node: Node) -> Callable[[], None]:
        """Stop all of a node's processes; return a function that resumes them."""
        pids = [node.process.pid, *node.processes()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

        def thaw() -> None:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

        return thaw

    def disconnect(self, node: Node) -> Callable[[], None]:
        """Drop all packets from and to a node; return a function that reconnects it."""
        assert self._network is not None
        network, name = self._network, self._namespaces[node.instance_id]
        network.disconnect(name)
        return lambda: network.reconnect(name)

    def forget_exited(self) -> None:
        """Forget the nodes whose supervisor has exited."""
        for node in [node for node in self.nodes if node.process.poll() is not None]:
            self._forget(node)

    def close(self) -> None:
        """End all nodes; their files remain readable."""
        for node in list(self.nodes):
            self._forget(node)

    def _forget(self, node: Node) -> None:
        node.close()
        self.nodes.remove(node)
        self._lost.append(node)  # its files are still needed

    @property
    def everyone(self) -> list[Node]:
        """All nodes, including those that were lost."""
        return [*self.nodes, *self._lost]

    def first(self, generation: int) -> Node:
        """Return the node with rank 0 in a generation."""
        return next(node for node in self.nodes if self._rank(node, generation) == 0)

    def last(self, generation: int) -> Node:
        """Return the node with the last rank in a generation."""
        return max(self.nodes, key=lambda node: self._rank(node, generation))

    def _rank(self, node: Node, generation: int) -> int:
        started = events(node, "generation_started")
        return next((event["rank"] for event in started if event["generation"] == generation), -1)

    def wait(self, what: str, condition: Callable[[], T | None]) -> T:
        """Wait until a condition is true; return its value.

        Raises:
            TooSlowError: The condition was not met in time.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            time.sleep(POLL_SECONDS)
        logs = "\n".join(f"== {node.instance_id}\n{_log_tails(node)}" for node in self.nodes)
        raise TooSlowError(f"{what}: timed out after {WAIT_SECONDS:g} s\n{logs}")

    def training(self, after: int, members: int | None = None) -> int | None:
        """Return a later generation (with this number of members) that has completed a step; None if there is none."""
        numbers = {
            event["generation"]
            for node in self.nodes
            for event in events(node, "generation_started")
            if event["generation"] > after and members in (None, len(event["members"]))
        }
        return next((number for number in sorted(numbers) if self.records(number, "step")), None)

    def settle(self, generation: int) -> None:
        """Wait until a generation is in its steady state: it has saved, and every node has its next standby.

        Raises:
            TooSlowError: The state was not reached in time.
        """
        self.wait(f"saves of generation {generation}", lambda: len(self.records(generation, "checkpoint")) >= MIN_SAVES)
        self.wait("standbys", lambda: all(_has_standby(node, generation) for node in self.nodes))

    def records(self, generation: int, kind: str) -> list[dict[str, Any]]:
        """Return rank 0's records from a generation."""
        return next(
            (found for node in (*self.nodes, *self._lost) if (found := node.records(RUN, generation, kind))), []
        )


def _has_standby(node: Node, generation: int) -> bool:
    """Return True if a node has a standby that was created after this generation started."""
    starts = [
        event["unix_seconds"] for event in events(node, "generation_started") if event["generation"] == generation
    ]
    ready = [event["unix_seconds"] for event in events(node, "standby_ready")]
    return bool(starts and ready) and max(ready) > max(starts)


def _log_tails(node: Node) -> str:
    logs = sorted(node.root.glob("runs/*/gen-*/trainer.log"), key=lambda path: path.stat().st_mtime)
    files = [node.root / "events.jsonl", node.root / "console.log", node.root / "standby.log", *logs[-1:]]
    return "\n".join(
        f"-- {path.name}\n{path.read_text(encoding='utf-8', errors='replace')[-LOG_TAIL_BYTES:]}"
        for path in files
        if path.exists()
    )


def events(node: Node, name: str) -> list[dict[str, Any]]:
    """Return the events with this name that a node has emitted."""
    path = node.root / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [event for line in lines if line.endswith("\n") and (event := json.loads(line))["event"] == name]
