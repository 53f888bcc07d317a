"""The next generation, as the supervisor hands it to running ranks: the file `generation.json` in the run directory.

A rank reads the file again only after a change. A thread reads it too, because the rank's main thread may be waiting
in a collective for a rank that no longer exists: the thread then breaks the gang's connections.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from training.errors import NotReformedError

FILE, HOLD_FILE = "generation.json", "hold"
"""The handover, and the file that exists while the supervisor cannot read which generation is the newest."""
POLL_SECONDS = 0.05
LOST_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Handover:
    """A generation that continues the running one.

    Attributes:
        generation: its number.
        nodes: number of nodes.
        node_rank: this node's rank; None: this node leaves, or it is fenced.
        survivors: number of nodes, first in rank order, whose ranks hold the run's state. The others join.
        planned: True if every rank of the running generation is expected to reach the change.
        master_address: address of the first node.
        master_port: port of the store on the first node.
    """

    generation: int
    nodes: int
    node_rank: int | None
    survivors: int
    planned: bool
    master_address: str
    master_port: int

    @property
    def is_fence(self) -> bool:
        """Whether the others have lost this node, and its ranks wait for a generation that they can join."""
        return self.node_rank is None and not self.planned

    def joins(self) -> bool:
        """Return True if this node's ranks are new in the generation, and receive the state."""
        return self.node_rank is not None and self.node_rank >= self.survivors

    def rank(self, local_rank: int, local_world_size: int) -> int:
        """Return a process's rank in the generation."""
        assert self.node_rank is not None, "a node that leaves has no rank"
        return self.node_rank * local_world_size + local_rank


class Inbox:
    """Reads a run directory's handover.

    Args:
        run_directory: the run directory.
        generation: generation of the running ranks; older handovers are ignored.
    """

    def __init__(self, run_directory: Path, generation: int) -> None:
        self._path = str(run_directory / FILE)
        self._hold = run_directory / HOLD_FILE
        self._version: tuple[int, int] | None = None
        self._newest: Handover | None = None
        self.generation = generation

    def is_held(self) -> bool:
        """Return True while the supervisor asks the ranks to wait for a handover."""
        return self._hold.exists()

    def newest(self) -> Handover | None:
        """Return the newest handover of a later generation than the running one, or None.

        Raises:
            NotReformedError: The file is not a handover.
        """
        try:
            status = os.stat(self._path)  # noqa: PTH116
        except FileNotFoundError:
            return None
        version = (status.st_mtime_ns, status.st_ino)
        if version != self._version:
            self._newest, self._version = _read(Path(self._path)), version
        newest = self._newest
        return newest if newest is not None and newest.generation > self.generation else None


class WatchedGang(Protocol):
    """The part of a gang that a watch needs."""

    def break_connections(self) -> None:
        """End the collectives in flight."""

    def notice_lost_connections(self) -> None:
        """End the collectives in flight if a connection has been closed."""


class Watch:
    """Breaks the gang's connections when a handover is not planned. One thread, which ends with the process.

    While the gang changes, every later handover breaks them: it replaces the generation that is being formed.

    Args:
        run_directory: the run directory.
        generation: generation of the running ranks.
        gang: the gang.
        limit_seconds: time for the main thread to notice a break.
        when_stuck: called if it has not.
    """

    def __init__(
        self,
        run_directory: Path,
        generation: int,
        gang: WatchedGang,
        limit_seconds: float,
        when_stuck: Callable[[], None],
    ) -> None:
        self._inbox = Inbox(run_directory, generation)
        self._gang = gang
        self._limit_seconds, self._when_stuck = limit_seconds, when_stuck
        self._is_changing = False
        self._deadline: float | None = None
        self._next_look = 0.0
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="handover watch", daemon=True)
        self._thread.start()

    def follow(self, generation: int, *, is_changing: bool) -> None:
        """Ignore handovers up to this generation: the main thread has read them.

        Args:
            generation: the generation.
            is_changing: True while the generation is being formed.
        """
        with self._lock:
            self._is_changing, self._deadline = is_changing, None
            self._inbox.generation = max(self._inbox.generation, generation)

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            with self._lock:
                self._look(time.monotonic())

    def _look(self, now: float) -> None:
        if self._deadline is not None and now > self._deadline:
            self._when_stuck()
            self._deadline = None
        if not self._is_changing and now >= self._next_look:
            self._next_look = now + LOST_POLL_SECONDS
            self._gang.notice_lost_connections()
        try:
            newest = self._inbox.newest()
        except NotReformedError:  # the main thread reports it
            return
        if newest is None or (newest.planned and not self._is_changing):
            return
        self._inbox.generation = newest.generation
        self._gang.break_connections()
        if not self._is_changing:  # otherwise, the change has a limit
            self._deadline = now + self._limit_seconds


def write_answer(run_directory: Path, generation: int, local_rank: int, rank: int, step: int) -> None:
    """Write `formed/local-<%02d>.json` for the supervisor: this process is a rank of the generation."""
    directory = run_directory / "formed"
    directory.mkdir(exist_ok=True)
    path = directory / f"local-{local_rank:02d}.json"
    temporary = path.with_suffix(".json.unfinished")
    temporary.write_text(json.dumps({"schema_version": 1, "generation": generation, "rank": rank, "step": step}))
    temporary.replace(path)


def _read(path: Path) -> Handover:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        handover = Handover(**{key: value for key, value in document.items() if key != "schema_version"})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise NotReformedError(f"{path}: not a handover ({error})") from error
    whole = (handover.generation, handover.nodes, handover.survivors, handover.master_port)
    if not all(isinstance(each, int) and each > 0 for each in whole) or handover.survivors > handover.nodes:
        raise NotReformedError(f"{path}: not a handover ({handover})")
    return handover
