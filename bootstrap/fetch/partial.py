"""A file that is downloaded in parts, in any order, and the journal of the parts that are on disk.

A part is recorded after all of its bytes are in the page cache. These bytes survive SIGKILL but not a machine crash, so
a journal is valid only for one kernel boot, and fsync is not needed. The complete file is always verified against its
hash.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from bootstrap.system import System

RANGES = ".ranges"
JOURNAL = ".journal"


def hidden_names(name: str) -> tuple[str, str]:
    """Return the names of an object's partial file and journal."""
    return f".{name}{RANGES}", f".{name}{JOURNAL}"


@dataclass(frozen=True)
class Origin:
    """Identity of the object and of the kernel boot. Parts with a different origin are discarded."""

    etag: str
    size: int
    part_bytes: int
    boot_id: str


class Partial:
    """The hidden file `.NAME.ranges`, at its final size, and its journal `.NAME.journal`."""

    def __init__(self, system: System, directory: Path, name: str, origin: Origin) -> None:
        """Resume with parts that have the same origin, or start over.

        Raises:
            OSError: The files cannot be written. The error is ENOSPC if the disk is full.
        """
        self.path, self._journal_path = (directory / each for each in hidden_names(name))
        self.origin = origin
        self.count = -(-origin.size // origin.part_bytes)
        self._front = 0
        self.done = self._recorded()
        if not self.done:
            self._start_over()
        lines = [json.dumps(asdict(origin)), *(str(part) for part in sorted(self.done))]
        system.write_atomic(self._journal_path, "\n".join(lines) + "\n")  # drops a truncated last line
        self._journal = os.open(self._journal_path, os.O_WRONLY | os.O_APPEND)

    def span(self, part: int) -> tuple[int, int]:
        """Return a part's offset and length."""
        first = part * self.origin.part_bytes
        return first, min(self.origin.part_bytes, self.origin.size - first)

    def record(self, part: int) -> None:
        """Record that a part is on disk."""
        self.done.add(part)
        os.write(self._journal, f"{part}\n".encode())

    def front_bytes(self) -> int:
        """Return the number of bytes before the first gap."""
        while self._front in self.done:
            self._front += 1
        return min(self._front * self.origin.part_bytes, self.origin.size)

    def is_complete(self) -> bool:
        """Return True if all parts are on disk."""
        return len(self.done) == self.count

    def finish(self, path: Path) -> None:
        """Rename the complete file and remove the journal."""
        self.path.rename(path)
        self._journal_path.unlink()
        self.close()

    def discard(self) -> None:
        """Remove both files: the object has changed."""
        self.path.unlink(missing_ok=True)
        self._journal_path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the journal and keep both files for a later resume."""
        if self._journal >= 0:
            os.close(self._journal)
        self._journal = -1

    def _recorded(self) -> set[int]:
        """Return the parts in the journal, or an empty result if the journal or the file has a different origin."""
        try:
            header, *lines = self._journal_path.read_text(encoding="ascii").split("\n")
            if json.loads(header) != asdict(self.origin) or self.path.stat().st_size != self.origin.size:
                return set()
            parts = {int(line) for line in lines[:-1]}  # the last line is empty or truncated
        except (OSError, ValueError):
            return set()
        return {part for part in parts if 0 <= part < self.count} if self.origin.boot_id else set()

    def _start_over(self) -> None:
        self._journal_path.unlink(missing_ok=True)
        # Remove the file instead of truncating it: a dying process may still write to the old file.
        self.path.unlink(missing_ok=True)
        with self.path.open("xb") as stream:
            stream.truncate(self.origin.size)
