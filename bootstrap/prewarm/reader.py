"""Reads pieces of a disk once, many at a time, past the page cache; can be stopped, and goes on where it was.

The blocks of a volume that was made from a snapshot come from S3 when they are read first, each after a wait of
milliseconds: one reader sees a few MB/s, many at once see what the volume can give.
Source: https://docs.aws.amazon.com/ebs/latest/userguide/initalize-volume.html (2026-11).
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bootstrap.prewarm.extents import PIECE_BYTES, Piece
from bootstrap.system import System

READERS = 64
REPORT_SECONDS = 5.0
FIRST_BYTES = 1024**3


@dataclass(frozen=True)
class Progress:
    """How far it is.

    Attributes:
        bytes_done: read, those of an earlier try among them.
        bytes_total: to be read.
        bytes_per_second: of this try.
        remaining_seconds: at that rate; None before the first byte.
    """

    bytes_done: int
    bytes_total: int
    bytes_per_second: float
    remaining_seconds: float | None


@dataclass
class _Position:
    """What the readers share, guarded by `lock`."""

    next: int
    contiguous: int  # every piece before it has been read
    awaited: int  # of `contiguous`, by `run`
    done: bytearray
    bytes_read: int = 0
    next_start_seconds: float = 0.0
    problem: OSError | None = None
    lock: threading.Condition = field(default_factory=threading.Condition)


class Prewarm:
    """One pass over `pieces`.

    `state` remembers how far it came, for the same pieces of the same `disk` (its serial number).
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        *,
        system: System,
        state: Path,
        disk: str,
        readers: int = READERS,
        limit_bytes_per_second: float | None = None,
    ) -> None:
        self._pieces = pieces
        self._system = system
        self._state = state
        self._readers = readers
        self._limit = limit_bytes_per_second
        layout = "\n".join([disk, *(f"{piece.offset}+{piece.length}" for piece in pieces)])
        self._key = hashlib.sha256(layout.encode()).hexdigest()
        self._total = sum(piece.length for piece in pieces)
        start = self._read_state()
        self.resumed_bytes = sum(piece.length for piece in pieces[:start])
        self._position = _Position(start, start, len(pieces), bytearray(len(pieces)))
        self._stopped = threading.Event()

    @property
    def bytes_total(self) -> int:
        """Return the bytes to be read."""
        return self._total

    def stop(self) -> None:
        """Make `run` return soon; may be called from a signal handler."""
        self._stopped.set()

    def run(
        self, *, first_bytes: int, on_first: Callable[[Progress], None], on_progress: Callable[[Progress], None]
    ) -> bool:
        """Read all that was not read before; return False when stopped.

        `on_first` is called once, when the first `first_bytes` (or all) have been read.

        Raises:
            OSError: The disk cannot be read.
        """
        position, started = self._position, time.monotonic()
        position.next_start_seconds = started
        threads = [threading.Thread(target=self._read, name="prewarm", daemon=True) for _ in range(self._readers)]
        for thread in threads:
            thread.start()
        next_report = started + REPORT_SECONDS
        position.awaited = self._pieces_of(min(first_bytes, self._total))
        first_is_due = True
        while True:
            with position.lock:
                position.lock.wait_for(self._is_news, timeout=0.5)
                contiguous, problem = position.contiguous, position.problem
            if first_is_due and contiguous >= position.awaited:
                first_is_due, position.awaited = False, len(self._pieces)
                on_first(self._progress(started))
            over = contiguous == len(self._pieces) or problem is not None or self._stopped.is_set()
            if over or time.monotonic() >= next_report:
                next_report = time.monotonic() + REPORT_SECONDS
                self._write_state(contiguous)
                on_progress(self._progress(started))
            if over:
                break
        self._stopped.set()
        for thread in threads:
            thread.join()
        if problem is not None:
            raise problem
        self._write_state(position.contiguous)
        return position.contiguous == len(self._pieces)

    def _is_news(self) -> bool:
        position = self._position
        return self._stopped.is_set() or position.problem is not None or position.contiguous >= position.awaited

    def _pieces_of(self, count: int) -> int:
        """Return how many pieces hold the first `count` bytes."""
        for number, piece in enumerate(self._pieces):
            if count <= 0:
                return number
            count -= piece.length
        return len(self._pieces)

    def _progress(self, started: float) -> Progress:
        read = self._position.bytes_read
        done = self.resumed_bytes + read
        rate = read / max(time.monotonic() - started, 1e-6)
        return Progress(done, self._total, rate, (self._total - done) / rate if rate else None)

    def _read(self) -> None:
        descriptors: dict[Path, int] = {}
        position = self._position
        try:
            with mmap.mmap(-1, PIECE_BYTES) as buffer:  # aligned, as direct reads want it
                while (number := self._take()) is not None:
                    piece = self._pieces[number]
                    _read_piece(piece, buffer, descriptors)
                    self._finish(number)
        except OSError as error:
            with position.lock:
                position.problem = position.problem or error
                position.lock.notify_all()
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)

    def _take(self) -> int | None:
        """Return the number of the piece to be read next, when the rate allows it; None at the end."""
        position = self._position
        with position.lock:
            number = position.next
            if number >= len(self._pieces) or position.problem is not None or self._stopped.is_set():
                return None
            position.next += 1
            now = time.monotonic()
            start = max(now, position.next_start_seconds)
            if self._limit is not None:
                position.next_start_seconds = start + self._pieces[number].length / self._limit
        return None if self._stopped.wait(start - now) else number

    def _finish(self, number: int) -> None:
        position = self._position
        with position.lock:
            position.done[number] = 1
            position.bytes_read += self._pieces[number].length
            if number == position.contiguous:
                end = position.done.find(0, number)
                position.contiguous = len(self._pieces) if end < 0 else end
                position.lock.notify_all()

    def _read_state(self) -> int:
        text = self._system.read(self._state)
        try:
            state = json.loads(text) if text is not None else {}
            return min(int(state["pieces_done"]), len(self._pieces)) if state.get("key") == self._key else 0
        except (ValueError, KeyError, TypeError, AttributeError):
            return 0  # reading again costs time only

    def _write_state(self, pieces_done: int) -> None:
        self._system.write_atomic(self._state, json.dumps({"key": self._key, "pieces_done": pieces_done}) + "\n")


def _read_piece(piece: Piece, buffer: mmap.mmap, descriptors: dict[Path, int]) -> None:
    """Read a piece into `buffer`; the end of a file that became shorter ends it."""
    descriptor = descriptors.get(piece.path)
    if descriptor is None:
        while len(descriptors) >= 8:  # of a dataset of many small files, those just read are kept open
            os.close(descriptors.pop(next(iter(descriptors))))
        descriptor = descriptors[piece.path] = _open(piece.path)
    done = 0
    while done < piece.length:
        # A direct read must be of whole blocks; what is read beyond the end of a file is nothing.
        with memoryview(buffer) as whole, whole[: -(-(piece.length - done) // 4096) * 4096] as view:
            count = os.preadv(descriptor, [view], piece.offset + done)
        if count == 0 or count % 512:
            return
        done += count


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:  # tmpfs and others have no direct reads
            raise
        return os.open(path, os.O_RDONLY)
