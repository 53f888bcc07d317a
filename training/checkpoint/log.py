"""A run's append-only log of writers and committed checkpoints.

Entries are named ``log/<sequence>.json``, and are never changed or deleted. A writer begins with a *fence* and appends
each entry immediately after its own last entry. The store's create-only write therefore decides every race. If a later
writer's fence is already there, the earlier writer is superseded and can no longer add to the log.

Any node in a run can write these keys. An object that is not an entry (docs/checkpoint-format.md, "Log") is ignored:
a writer logs a warning that names the object, and appends after it.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from training.checkpoint.manifest import LogEntry, parse_record
from training.checkpoint.storage.backend import Backend
from training.errors import AlreadyExistsError, CorruptCheckpointError, NotFoundError, StoreError, SupersededError

logger = logging.getLogger(__name__)

PREFIX = "log/"
MAX_SEQUENCE = 99_999_999
"""Largest sequence number: keys have eight digits."""
MAX_GAP = 1000
"""Writers use sequence numbers in order, so an entry more than this number after the preceding entry is ignored. A
shorter gap is tolerated, because a damaged copy of a store may have lost entries."""
MAX_GENERATIONS_AHEAD = 1_000_000
"""A generation that exceeds the writer's own by more than this is implausible, because starting a gang takes seconds.
The limit leaves room for other numbering schemes, such as a scheduler's job ids."""
MAX_ATTEMPTS = 1000
"""A writer gives up after it has found this many invalid objects, or entries from other starting writers."""
MAX_LISTED = 200_000
"""Maximum number of objects to list when reading the log. A run that saves every minute reaches it in four months.
Entries after the listed ones are found one by one."""
_ENTRY_KEY = re.compile(r"log/[0-9]{8}\.json")


def entry_key(sequence: int) -> str:
    """Return a log entry's key. It has eight digits, so that keys sort in entry order."""
    return f"{PREFIX}{sequence:08d}.json"


def sequences(backend: Backend) -> list[int]:
    """Return the entries' sequence numbers in ascending order, up to any gap of more than `MAX_GAP`.

    If there are more than `MAX_LISTED` objects, the numbers after the listed ones are assumed to have no gaps.
    """
    keys = backend.keys(PREFIX, MAX_LISTED)
    found = _before_gap([int(key[len(PREFIX) :][:8]) for key in keys if _ENTRY_KEY.fullmatch(key)])
    if len(keys) < MAX_LISTED:
        return found
    first = found[-1] + 1 if found else 0
    last = _last_existing(backend, first - 1)
    logger.warning(
        "%s/%s has more than %d objects, and %d of them are entries; remove the objects that are not entries",
        backend.url, PREFIX, MAX_LISTED - 1, last + 1,
    )  # fmt: skip
    return [*found, *range(first, last + 1)]


def exists(backend: Backend, sequence: int) -> bool:
    """Return True if the log has an object with an entry's key, regardless of how many keys begin with that key."""
    key = entry_key(sequence)
    return backend.keys(key, 1) == [key]


def _last_existing(backend: Backend, last: int) -> int:
    """Return the last entry before the first gap. To save requests, search in steps of `MAX_GAP`, then bisect."""
    while last + MAX_GAP <= MAX_SEQUENCE and exists(backend, last + MAX_GAP):
        last += MAX_GAP
    missing = min(last + MAX_GAP, MAX_SEQUENCE + 1)
    while missing - last > 1:
        middle = (last + missing) // 2
        if exists(backend, middle):
            last = middle
        else:
            missing = middle
    return last


def _before_gap(ascending: list[int]) -> list[int]:
    previous = -1
    for index, sequence in enumerate(ascending):
        if sequence - previous > MAX_GAP:
            logger.warning(
                "ignoring %s: the preceding entry is %d; remove the object unless the entries between them were lost",
                entry_key(sequence),
                previous,
            )
            return ascending[:index]
        previous = sequence
    return ascending


def read_entry(backend: Backend, sequence: int) -> LogEntry:
    """Read one entry.

    Raises:
        ConfigurationError: Another version of this package wrote the entry.
        CorruptCheckpointError: The entry is damaged, or has another sequence number.
        NotFoundError: The entry does not exist.
    """
    where = f"{backend.url}/{entry_key(sequence)}"
    entry = parse_record(LogEntry, backend.get(entry_key(sequence)), where)
    if entry.sequence != sequence:
        raise CorruptCheckpointError(f"{where}: has sequence {entry.sequence}, expected {sequence}")
    return entry


def newest_first(backend: Backend) -> Iterator[LogEntry]:
    """Read entries one at a time, and yield them newest first; skip damaged entries with a warning."""
    for sequence in reversed(sequences(backend)):
        try:
            yield read_entry(backend, sequence)
        except (CorruptCheckpointError, NotFoundError) as error:
            logger.warning("skipping log entry %d: %s", sequence, error)


class LogRight(NamedTuple):
    """A LogWriter's state without its backend, for transfer to another process. Only that process may then use it."""

    generation: int
    writer: str
    fence: int
    last: int


class LogWriter:
    """One process's right to append to the log in one generation. The constructor appends the fence.

    Args:
        backend: the checkpoint store.
        generation: the gang's generation; rejected if the log has a later one.
        reason: the fence's purpose, if other than training.

    Attributes:
        fence: the fence's sequence number, unique to this writer. It names the folder for this writer's chunks.

    Raises:
        ConfigurationError: Another version of this package wrote the log.
        SupersededError: A later generation is in the log.
    """

    def __init__(self, backend: Backend, generation: int, reason: str | None = None) -> None:
        self._backend = backend
        self._generation = generation
        self._writer = uuid.uuid4().hex
        self.fence = self._append_fence(reason)
        self._last = self.fence

    @classmethod
    def take_over(cls, backend: Backend, right: LogRight) -> LogWriter:
        """Continue another process's writer, without a new fence."""
        writer = cls.__new__(cls)
        writer._backend = backend
        writer._generation, writer._writer, writer.fence, writer._last = right
        return writer

    @property
    def right(self) -> LogRight:
        """The state to pass to :meth:`take_over` in another process."""
        return LogRight(self._generation, self._writer, self.fence, self._last)

    def _append_fence(self, reason: str | None) -> int:
        for _ in range(MAX_ATTEMPTS):
            existing = sequences(self._backend)
            newest = next((entry for entry in newest_first(self._backend) if self._is_plausible(entry)), None)
            if newest is not None:
                self._refuse_later_generation(newest)
            fence = self._entry(existing[-1] + 1 if existing else 0, kind="fence", reason=reason)
            if self._create(fence):
                return fence.sequence
        raise self._cannot_append(fence.sequence)

    def append_checkpoint(self, **fields: Any) -> LogEntry:
        """Commit a checkpoint: append an entry with these fields of :class:`LogEntry`.

        Raises:
            SupersededError: Another writer has appended a later fence; nothing was committed.
            StoreError: The store does not respond, or too many objects that are not entries follow the last entry.
        """
        # Every writer skips the same objects, so a later writer still competes for the same sequence number.
        for sequence in range(self._last + 1, self._last + 1 + MAX_ATTEMPTS):
            entry = self._entry(sequence, kind="checkpoint", **fields)
            if self._create(entry):
                self._last = sequence
                return entry
            holder = self._other_entry(sequence)
            if holder is not None:
                raise SupersededError(self._superseded_by(holder))
        raise self._cannot_append(self._last + 1)

    def is_superseded(self) -> bool:
        """Return True if another writer has appended an entry. Call it before committing."""
        for sequence in range(self._last + 1, self._last + 1 + MAX_ATTEMPTS):
            if not exists(self._backend, sequence):
                return False
            if self._other_entry(sequence) is not None:
                return True
        return False

    def _other_entry(self, sequence: int) -> LogEntry | None:
        """Return another writer's entry, or None if the object is not a valid entry."""
        try:
            entry = read_entry(self._backend, sequence)
        except (CorruptCheckpointError, NotFoundError) as error:
            logger.warning("appending after log entry %d: %s", sequence, error)
            return None
        return entry if self._is_plausible(entry) else None

    def _is_plausible(self, entry: LogEntry) -> bool:
        if entry.generation - self._generation <= MAX_GENERATIONS_AHEAD:
            return True
        logger.warning(
            "ignoring %s/%s: its generation %d is more than %d after this process's generation %d; remove it",
            self._backend.url,
            entry_key(entry.sequence),
            entry.generation,
            MAX_GENERATIONS_AHEAD,
            self._generation,
        )
        return False

    def _cannot_append(self, sequence: int) -> StoreError:
        return StoreError(
            f"{self._backend.url}/{entry_key(sequence)}: {MAX_ATTEMPTS} attempts to append here or later failed; "
            f"list {PREFIX} in the store, and remove the objects that are not entries (docs/checkpoint-format.md, Log)"
        )

    def _entry(self, sequence: int, **fields: Any) -> LogEntry:
        return LogEntry(
            sequence=sequence, generation=self._generation, writer=self._writer, unix_seconds=time.time(), **fields
        )

    def _create(self, entry: LogEntry) -> bool:
        """Create an entry; return False if its sequence number is taken.

        Raises:
            StoreError: The sequence number has more than eight digits.
        """
        if entry.sequence > MAX_SEQUENCE:
            raise StoreError(
                f"{self._backend.url}: the log ends at entry {MAX_SEQUENCE}; copy the run to another store"
            )
        try:
            self._backend.create(entry_key(entry.sequence), entry.model_dump_json(exclude_none=True).encode())
        except AlreadyExistsError:
            # After a lost response, the retry finds this writer's own entry.
            try:
                return read_entry(self._backend, entry.sequence).writer == self._writer
            except (CorruptCheckpointError, NotFoundError):
                return False
        return True

    def _refuse_later_generation(self, newest: LogEntry) -> None:
        if newest.generation > self._generation:
            raise SupersededError(self._superseded_by(newest))

    def _superseded_by(self, entry: LogEntry) -> str:
        return (
            f"{self._backend.url}: generation {entry.generation} has owned the checkpoint log since entry "
            f"{entry.sequence}; this process belongs to generation {self._generation} and stops "
            "without committing anything"
        )
