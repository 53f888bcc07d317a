"""Gangs of real trainer processes, forked from a parent that has imported torch so that they start in milliseconds.

Each rank leads its own session, as under the launcher, and runs the main function of `python -m training train`.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.chaos.metrics import read_records
from training.process.children import STOP_SIGNALS

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, ForkServerProcess
    from multiprocessing.sharedctypes import Synchronized

PRELOADED = [
    "training.loop.trainer",
    "training.loop.build",
    "training.config",
    "torch._dynamo",
    "training.checkpoint.storage.s3",
]
COLLECTIVE_TIMEOUT_SECONDS = 8
"""Timeout for a collective. The trainer's default is minutes; with this value, a stopped rank costs only seconds."""
RENDEZVOUS_TIMEOUT_SECONDS = 20
READ_TIMEOUT_SECONDS = 1
"""Timeout for a read, shorter than the trainer's 20 s for the same reason."""
POLL_SECONDS = 0.01


def _run_rank(
    arguments: list[str],
    environment: dict[str, str],
    stderr: str,
    clock_offset: Synchronized[float],
    prepare: Callable[[], None] | None,
) -> None:
    """Run a trainer process; `clock_offset` seconds are added to its wall clock."""
    os.setsid()
    os.environ.update(environment)
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.chdir(Path(stderr).parent)
    true_time = time.time
    time.time = lambda: true_time() + clock_offset.value
    from training.__main__ import main
    from training.checkpoint.storage import s3
    from training.process import distributed

    distributed.RENDEZVOUS_TIMEOUT = datetime.timedelta(seconds=RENDEZVOUS_TIMEOUT_SECONDS)
    distributed.COLLECTIVE_TIMEOUT = datetime.timedelta(seconds=COLLECTIVE_TIMEOUT_SECONDS)
    s3.READ_TIMEOUT_SECONDS = READ_TIMEOUT_SECONDS
    if prepare is not None:
        prepare()
    sys.exit(main(arguments))


@dataclass
class Gang:
    """The processes of one generation, and their output.

    Attributes:
        generation: number of the generation.
        directory: the run directory.
        processes: the processes, in rank order.
        clock_offset: seconds added to their clocks; may be changed at any time.
    """

    generation: int
    directory: Path
    processes: list[ForkServerProcess] = field(default_factory=list)
    clock_offset: Any = None

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Return the complete records of one kind from the metrics file."""
        return read_records(self.directory, kind)

    def losses(self) -> dict[int, float]:
        """Return the loss by step."""
        return {record["step"]: record["loss"] for record in self.records("step")}

    def outcomes(self) -> list[dict[str, Any]]:
        """Return the outcome files in rank order."""
        paths = sorted((self.directory / "outcomes").glob("rank-*.json"))
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

    def errors(self) -> str:
        """Return the ranks' logs."""
        return "\n".join(path.read_text(encoding="utf-8") for path in sorted(self.directory.glob("stderr-*")))

    @property
    def is_alive(self) -> bool:
        """Whether a process is still running."""
        return any(process.is_alive() for process in self.processes)

    def wait_until(self, condition: Callable[[], object], seconds: float) -> bool:
        """Wait for a condition, the exit of all processes, or the timeout; return True if the condition is met."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return True
            if not self.is_alive:
                return bool(condition())
            time.sleep(POLL_SECONDS)
        return False

    def send(self, number: signal.Signals, ranks: list[int] | None = None) -> None:
        """Send a signal to some ranks, by default to all."""
        for rank, process in enumerate(self.processes):
            if (ranks is None or rank in ranks) and process.pid is not None and process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def wait(self, seconds: float) -> bool:
        """Wait until all processes have exited; return False on timeout."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return not self.is_alive

    def request_stop(self, deadline_seconds: float | None = None, *, train_on: bool = False) -> None:
        """Write the stop file, as the supervisor does after a notice."""
        request: dict[str, Any] = {"reason": "spot interruption", "train_on": train_on}
        if deadline_seconds is not None:
            request["deadline_unix_seconds"] = time.time() + deadline_seconds
        temporary = self.directory / ".stop"
        temporary.write_text(json.dumps(request), encoding="utf-8")
        temporary.replace(self.directory / "stop")

    def end(self) -> None:
        """Kill the ranks and all processes in their sessions."""
        for process in self.processes:
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
            process.join()


def start_forkserver() -> ForkServerContext:
    """Start the process that imports the modules, and from which ranks are forked; return its context.

    Keep signals blocked until a rank has installed its handlers, which unblocks them. An early signal would kill the
    rank, and there is no supervisor to terminate the others.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    resource_tracker.ensure_running()  # otherwise the next call starts it and unblocks the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


class WarmParent:
    """Forks gangs from a process with preloaded modules."""

    def __init__(self, root: Path, dataset: Path) -> None:
        self._context = start_forkserver()
        self._root = root
        self._dataset = dataset
        self._gangs: list[Gang] = []

    def start(
        self,
        name: str,
        config: Mapping[str, Any],
        world_size: int,
        generation: int,
        checkpoints: str,
        environment: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> Gang:
        """Start a gang; `name` is the name of its run directory. Each rank first calls `prepare`."""
        directory = self._root / name
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
        gang = Gang(generation, directory, clock_offset=self._context.Value("d", 0.0))
        self._gangs.append(gang)
        port = str(_free_port())
        for rank in range(world_size):
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
            variables = {name: str(value) for name, value in ranks.items()}
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **(environment or {})}
            arguments = [
                *("train", "--config", str(directory / "config.json"), "--dataset", str(self._dataset)),
                *("--checkpoints", checkpoints, "--run-directory", str(directory), "--generation", str(generation)),
            ]
            process = self._context.Process(
                target=_run_rank,
                args=(arguments, variables, str(directory / f"stderr-{rank}"), gang.clock_offset, prepare),
            )
            process.start()
            gang.processes.append(process)
        return gang

    def close(self) -> None:
        """End all gangs."""
        for gang in self._gangs:
            gang.end()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
