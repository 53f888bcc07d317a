"""The next generation, as the supervisor hands it to running ranks: the file `generation.json` in the run directory.

A rank reads the file again only after a change. A thread reads it too, because the rank's main thread may be waiting
in a collective for a rank that no longer exists: the thread then breaks the gang's connections.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from training.errors import NotReformedError

FILE = "generation.json"
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Handover:
    """A generation that continues the running one.

    Attributes:
        generation: its number.
        nodes: number of nodes.
        node_rank: this node's rank; None: this node leaves.
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
        self._version: tuple[int, int] | None = None
        self._newest: Handover | None = None
        self.generation = generation

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


class Watch:
    """Breaks the gang's connections when a handover is not planned. One thread, which ends with the process.

    While the gang changes, every later handover breaks them: it replaces the generation that is being formed.

    Args:
        run_directory: the run directory.
        generation: generation of the running ranks.
        break_connections: called at most once per handover.
    """

    def __init__(self, run_directory: Path, generation: int, break_connections: Callable[[], None]) -> None:
        self._inbox = Inbox(run_directory, generation)
        self._break = break_connections
        self._is_changing = False
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
            self._is_changing = is_changing
            self._inbox.generation = max(self._inbox.generation, generation)

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            with self._lock:
                try:
                    newest = self._inbox.newest()
                except NotReformedError:  # the main thread reports it
                    continue
                if newest is None or (newest.planned and not self._is_changing):
                    continue
                self._inbox.generation = newest.generation
                self._break()


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
