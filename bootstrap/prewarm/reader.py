"""Reads pieces of a disk once, in parallel, bypassing the page cache. Reading can be stopped and resumed.

EBS loads a block from the volume's snapshot in S3 when the block is first read, with a latency of milliseconds. One
reader achieves a few MB/s; many parallel readers achieve the volume's throughput.
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
    """Progress of a pre-warm.

    Attributes:
        bytes_done: Bytes read, including earlier attempts.
        bytes_total: Bytes to read.
        bytes_per_second: Rate of this attempt.
        remaining_seconds: Estimate at this rate, or None before the first byte.
    """

    bytes_done: int
    bytes_total: int
    bytes_per_second: float
    remaining_seconds: float | None


@dataclass
class _Position:
    """State that the readers share. `lock` guards it."""

    next: int
    contiguous: int  # all pieces before this one have been read
    awaited: int  # value of `contiguous` that `run` waits for
    done: bytearray
    bytes_read: int = 0
    next_start_seconds: float = 0.0
    problem: OSError | None = None
    lock: threading.Condition = field(default_factory=threading.Condition)


class Prewarm:
    """One pass over `pieces`.

    The file `state` records the progress, which is valid only for the same pieces on the same `disk` (serial number).
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
        """Return the number of bytes to read."""
        return self._total

    def stop(self) -> None:
        """Make `run` return soon. This method is safe to call from a signal handler."""
        self._stopped.set()

    def run(
        self, *, first_bytes: int, on_first: Callable[[Progress], None], on_progress: Callable[[Progress], None]
    ) -> bool:
        """Read the pieces that earlier attempts have not read. Return False if stopped.

        `on_first` is called once, after the first `first_bytes` (or all) have been read.

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
        first_pending = True
        while True:
            with position.lock:
                position.lock.wait_for(self._has_news, timeout=0.5)
                contiguous, problem = position.contiguous, position.problem
            if first_pending and contiguous >= position.awaited:
                first_pending, position.awaited = False, len(self._pieces)
                on_first(self._progress(started))
            ended = contiguous == len(self._pieces) or problem is not None or self._stopped.is_set()
            if ended or time.monotonic() >= next_report:
                next_report = time.monotonic() + REPORT_SECONDS
                self._write_state(contiguous)
                on_progress(self._progress(started))
            if ended:
                break
        self._stopped.set()
        for thread in threads:
            thread.join()
        if problem is not None:
            raise problem
        self._write_state(position.contiguous)
        return position.contiguous == len(self._pieces)

    def _has_news(self) -> bool:
        position = self._position
        return self._stopped.is_set() or position.problem is not None or position.contiguous >= position.awaited

    def _pieces_of(self, count: int) -> int:
        """Return the number of pieces that contain the first `count` bytes."""
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
            with mmap.mmap(-1, PIECE_BYTES) as buffer:  # aligned because direct reads require it
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
        """Return the next piece's number after waiting for the rate limit, or None at the end."""
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
            return 0  # reading pieces again only costs time

    def _write_state(self, pieces_done: int) -> None:
        self._system.write_atomic(self._state, json.dumps({"key": self._key, "pieces_done": pieces_done}) + "\n")


def _read_piece(piece: Piece, buffer: mmap.mmap, descriptors: dict[Path, int]) -> None:
    """Read a piece into `buffer`, up to the end of the file."""
    descriptor = descriptors.get(piece.path)
    if descriptor is None:
        while len(descriptors) >= 8:  # keep only the latest files open
            os.close(descriptors.pop(next(iter(descriptors))))
        descriptor = descriptors[piece.path] = _open(piece.path)
    done = 0
    while done < piece.length:
        # A direct read's size must be a multiple of the block size. The read stops at the end of the file.
        with memoryview(buffer) as memory, memory[: -(-(piece.length - done) // 4096) * 4096] as view:
            count = os.preadv(descriptor, [view], piece.offset + done)
        if count == 0 or count % 512:
            return
        done += count


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:  # tmpfs and others do not support direct reads
            raise
        return os.open(path, os.O_RDONLY)
