"""A file that is fetched in parts, in any order, and the journal of those that are there.

A part is recorded when all of its bytes were handed to the kernel. After a SIGKILL they are there, for the kernel keeps
them; after a crash of the machine they may not be, and so a journal counts only within one run of the kernel, and
nothing waits for fsync. Whatever the journal says, the file is accepted by its hash alone.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from bootstrap.system import System

RANGES = ".ranges"
JOURNAL = ".journal"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def hidden_names(name: str) -> tuple[str, str]:
    """Return the names of the partial file and the journal of an object of this name."""
    return f".{name}{RANGES}", f".{name}{JOURNAL}"


@dataclass(frozen=True)
class Origin:
    """Which bytes a partial file is made of; parts of another origin are worth nothing."""

    etag: str
    size: int
    part_bytes: int
    boot_id: str


def boot_id(system: System) -> str:
    """Return what names this run of the kernel; empty where the kernel does not say."""
    return (system.read(_BOOT_ID) or "").strip()


class Partial:
    """The hidden file `.NAME.ranges`, as large as it will be, and its journal `.NAME.journal`."""

    def __init__(self, system: System, directory: Path, name: str, origin: Origin) -> None:
        """Go on with what is there of the same origin, or begin anew.

        Raises:
            OSError: The files cannot be written; ENOSPC when the disk is full.
        """
        self.path, self._journal_path = (directory / each for each in hidden_names(name))
        self.origin = origin
        self.count = -(-origin.size // origin.part_bytes)
        self._front = 0
        self.done = self._recorded()
        if not self.done:
            self._begin()
        lines = [json.dumps(asdict(origin)), *(str(part) for part in sorted(self.done))]
        system.write_atomic(self._journal_path, "\n".join(lines) + "\n")  # without a line that was cut off
        self._journal = os.open(self._journal_path, os.O_WRONLY | os.O_APPEND)

    def span(self, part: int) -> tuple[int, int]:
        """Return the first byte of a part, and how many it has."""
        first = part * self.origin.part_bytes
        return first, min(self.origin.part_bytes, self.origin.size - first)

    def record(self, part: int) -> None:
        """Remember that a part is there."""
        self.done.add(part)
        os.write(self._journal, f"{part}\n".encode())

    def front_bytes(self) -> int:
        """Return how many bytes are there from the first on without a gap."""
        while self._front in self.done:
            self._front += 1
        return min(self._front * self.origin.part_bytes, self.origin.size)

    def is_whole(self) -> bool:
        """Return whether all parts are there."""
        return len(self.done) == self.count

    def finish(self, path: Path) -> None:
        """Give the whole file its next name."""
        self.path.rename(path)
        self._journal_path.unlink()
        self.close()

    def discard(self) -> None:
        """Remove both files: their object is no more."""
        self.path.unlink(missing_ok=True)
        self._journal_path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Leave both files for another time."""
        if self._journal >= 0:
            os.close(self._journal)
        self._journal = -1

    def _recorded(self) -> set[int]:
        """Return the parts that the journal names; none when it, or the file, is of another origin."""
        try:
            header, *lines = self._journal_path.read_text(encoding="ascii").split("\n")
            if json.loads(header) != asdict(self.origin) or self.path.stat().st_size != self.origin.size:
                return set()
            parts = {int(line) for line in lines[:-1]}  # the last is empty, or was cut off
        except (OSError, ValueError):
            return set()
        return {part for part in parts if 0 <= part < self.count} if self.origin.boot_id else set()

    def _begin(self) -> None:
        self._journal_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)  # not cut to nothing: a dying process may still write to the old one
        with self.path.open("xb") as stream:
            stream.truncate(self.origin.size)
