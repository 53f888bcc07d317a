"""The machines of the measurements: real supervisors, torchrun and trainers, around one S3, SSM and Logs."""

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
from benchmarks.local_moto import endpoint_environment

# Four machines that import on two cores, and compete with others for them, take this long; it costs nothing else.
WAIT_SECONDS = 240.0
POLL_SECONDS = 0.02
GANG_TIMEOUT_SECONDS = 30
BOOT_TIMEOUT_SECONDS = 120
# So long must a generation have trained before it is disturbed: it then has saved, and knows how long a save takes.
LEAST_SAVES = 2
WORDS_BYTES = 2000

T = TypeVar("T")


class TooSlowError(RuntimeError):
    """What was waited for did not come: what, and what the machines say."""


class Gang:
    """Machines that train one run without end.

    Args:
        folder: for the machines' roots.
        account: that they work with.
        code: bundle of the trainer.
        dataset: its name.
        nodes: of the whole gang; one fewer may train too.
        config: of the run.
        supervise: the deployment's timings.
        network: of the machines' own; None: all on the loop-back interface.
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
    ) -> None:
        self._folder, self._account, self._network = folder, account, network
        timings = {"gang_timeout_seconds": GANG_TIMEOUT_SECONDS, "boot_timeout_seconds": BOOT_TIMEOUT_SECONDS}
        self._document = {**account.node_document(), "supervise": {**supervise, **timings}}
        self._namespaces: dict[str, str] = {}
        self._machines = 0
        self.nodes: list[Node] = []
        self._gone: list[Node] = []
        run = {
            "schema_version": 1,
            "deployment": "boot",
            "run": RUN,
            "nodes": nodes,
            "min_nodes": nodes - 1,
            "processes_per_node": 1,
            "code": code,
            "dataset": dataset,
            "training": config,
        }
        account.ssm.put_parameter(Name=PARAMETER, Value=json.dumps(run), Type="String", Overwrite=True)

    def launch(self) -> Node:
        """Start a machine's supervisor; its boot is over."""
        self._machines += 1
        name, address = self._network.join(self._machines) if self._network else (None, None)
        with inside(name):
            node = Node(
                self._folder,
                self._machines,
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
        """The machine is gone: nothing comes from it any more, not even a reset."""
        if self._network:
            self._network.cut(self._namespaces[node.instance_id])
        self._forget(node)

    def freeze(self, node: Node) -> Callable[[], None]:
        """Stop every process of the machine; returns what makes them go on."""
        pids = [node.process.pid, *node.processes()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

        def thaw() -> None:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

        return thaw

    def cut(self, node: Node) -> Callable[[], None]:
        """Drop what the machine sends and what is sent to it; returns what connects it again."""
        assert self._network is not None
        network, name = self._network, self._namespaces[node.instance_id]
        network.cut(name)
        return lambda: network.mend(name)

    def end_left(self) -> None:
        """Forget the machines that have left by themselves."""
        for node in [node for node in self.nodes if node.process.poll() is not None]:
            self._forget(node)

    def close(self) -> None:
        """End all machines."""
        for node in self.nodes:
            node.close()
        self.nodes.clear()

    def _forget(self, node: Node) -> None:
        node.close()
        self.nodes.remove(node)
        self._gone.append(node)  # what it wrote is still read

    def first(self, generation: int) -> Node:
        """Return the machine that holds rank 0 of a generation."""
        return next(node for node in self.nodes if self._rank(node, generation) == 0)

    def last(self, generation: int) -> Node:
        """Return the machine that holds the last rank of a generation."""
        return max(self.nodes, key=lambda node: self._rank(node, generation))

    def _rank(self, node: Node, generation: int) -> int:
        started = events(node, "generation_started")
        return next((event["rank"] for event in started if event["generation"] == generation), -1)

    def wait(self, what: str, condition: Callable[[], T | None]) -> T:
        """Wait for something true.

        Raises:
            TooSlowError: It did not come.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            time.sleep(POLL_SECONDS)
        told = "\n".join(f"== {node.instance_id}\n{_last_words(node)}" for node in self.nodes)
        raise TooSlowError(f"{what}: not in {WAIT_SECONDS:g} s\n{told}")

    def training(self, after: int, members: int | None = None) -> int | None:
        """Return a later generation (of so many members) that has done a step, if there is one."""
        numbers = {
            event["generation"]
            for node in self.nodes
            for event in events(node, "generation_started")
            if event["generation"] > after and members in (None, len(event["members"]))
        }
        return next((number for number in sorted(numbers) if self.records(number, "step")), None)

    def settle(self, generation: int) -> None:
        """Wait until a generation is as it will be for hours: it has saved, and every node has its next standby.

        Raises:
            TooSlowError: It does not get there.
        """
        self.wait(
            f"saves of generation {generation}", lambda: len(self.records(generation, "checkpoint")) >= LEAST_SAVES
        )
        self.wait("standbys", lambda: all(_has_standby(node, generation) for node in self.nodes))

    def records(self, generation: int, kind: str) -> list[dict[str, Any]]:
        """What rank 0 of a generation wrote."""
        return next(
            (found for node in (*self.nodes, *self._gone) if (found := node.records(RUN, generation, kind))), []
        )


def _has_standby(node: Node, generation: int) -> bool:
    """Whether a machine has one that was made since this generation took the last."""
    began = [event["unix_seconds"] for event in events(node, "generation_started") if event["generation"] == generation]
    ready = [event["unix_seconds"] for event in events(node, "standby_ready")]
    return bool(began and ready) and max(ready) > max(began)


def _last_words(node: Node) -> str:
    logs = sorted(node.root.glob("runs/*/gen-*/trainer.log"), key=lambda path: path.stat().st_mtime)
    files = [node.root / "events.jsonl", node.root / "console.log", node.root / "standby.log", *logs[-1:]]
    return "\n".join(
        f"-- {path.name}\n{path.read_text(encoding='utf-8', errors='replace')[-WORDS_BYTES:]}"
        for path in files
        if path.exists()
    )


def events(node: Node, name: str) -> list[dict[str, Any]]:
    """Events of one kind that a machine has told of."""
    path = node.root / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [event for line in lines if line.endswith("\n") and (event := json.loads(line))["event"] == name]
