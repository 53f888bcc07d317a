"""The append-only log of a run: who may write, and which checkpoints are committed.

Entries are ``log/<sequence>.json``, created and never changed or removed. A writer begins with a *fence* and appends at
exactly the sequence after its own last entry, so the store's create-only write decides every race: a writer whose
place is taken by the fence of a later one is superseded, and nothing that it does can enter the log any more.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError

from training.checkpoint.backend import Backend
from training.checkpoint.manifest import LogEntry
from training.errors import AlreadyExistsError, CorruptCheckpointError, NotFoundError, SupersededError

logger = logging.getLogger(__name__)

PREFIX = "log/"
_ENTRY_KEY = re.compile(r"log/[0-9]{8}\.json")


def entry_key(sequence: int) -> str:
    """Key of a log entry; eight digits, so that the order of keys is the order of entries."""
    return f"{PREFIX}{sequence:08d}.json"


def sequences(backend: Backend) -> list[int]:
    """Sequences of all entries, ascending."""
    return [int(key[len(PREFIX) :][:8]) for key in backend.keys(PREFIX) if _ENTRY_KEY.fullmatch(key)]


def read_entry(backend: Backend, sequence: int) -> LogEntry:
    """Read one entry.

    Raises:
        CorruptCheckpointError: it is not the log entry of that place.
        NotFoundError: there is none at that place.
    """
    try:
        entry = LogEntry.model_validate_json(backend.get(entry_key(sequence)))
    except ValidationError as error:
        raise CorruptCheckpointError(f"{backend.url}/{entry_key(sequence)}: is not a log entry ({error})") from error
    if entry.sequence != sequence:
        raise CorruptCheckpointError(f"{backend.url}/{entry_key(sequence)}: says that it is entry {entry.sequence}")
    return entry


def newest_first(backend: Backend) -> Iterator[LogEntry]:
    """All entries from the last to the first, read one at a time; damaged ones are passed over loudly."""
    for sequence in reversed(sequences(backend)):
        try:
            yield read_entry(backend, sequence)
        except (CorruptCheckpointError, NotFoundError) as error:
            logger.warning("log entry %d is passed over: %s", sequence, error)


class LogRight(NamedTuple):
    """A LogWriter without its backend, to be handed to another process, which then is the only one to use it."""

    generation: int
    writer: str
    epoch: int
    last: int


class LogWriter:
    """The right to append, of one process in one generation.

    Args:
        backend: the store.
        generation: of the gang; a log that has seen a later one refuses this writer.
        reason: what the fence is for, if not for training.

    Attributes:
        epoch: sequence of the fence; no other writer has the same. It names the folder of this writer's chunks.

    Raises:
        SupersededError: a later generation is in the log.
    """

    def __init__(self, backend: Backend, generation: int, reason: str | None = None) -> None:
        self._backend = backend
        self._generation = generation
        self._writer = uuid.uuid4().hex
        self.epoch = self._raise_fence(reason)
        self._last = self.epoch

    @classmethod
    def take_over(cls, backend: Backend, right: LogRight) -> LogWriter:
        """Go on where the process left off that had this right."""
        writer = cls.__new__(cls)
        writer._backend = backend
        writer._generation, writer._writer, writer.epoch, writer._last = right
        return writer

    @property
    def right(self) -> LogRight:
        """What :meth:`take_over` needs in another process."""
        return LogRight(self._generation, self._writer, self.epoch, self._last)

    @property
    def next_sequence(self) -> int:
        """Place of the next entry; another writer's entry there means that this one is superseded."""
        return self._last + 1

    def _raise_fence(self, reason: str | None) -> int:
        while True:
            known = sequences(self._backend)
            newest = next(newest_first(self._backend), None)
            if newest is not None:
                self._refuse_later_generation(newest)
            fence = self._entry(known[-1] + 1 if known else 0, kind="fence", reason=reason)
            if self._create(fence):
                return fence.sequence

    def append_checkpoint(self, **fields: Any) -> LogEntry:
        """Commit a checkpoint: append an entry with these fields of :class:`LogEntry`.

        Raises:
            SupersededError: another writer has fenced this one off; nothing was committed.
        """
        entry = self._entry(self._last + 1, kind="checkpoint", **fields)
        if not self._create(entry):
            raise SupersededError(self._superseded_by(read_entry(self._backend, entry.sequence)))
        self._last = entry.sequence
        return entry

    def _entry(self, sequence: int, **fields: Any) -> LogEntry:
        return LogEntry(
            sequence=sequence, generation=self._generation, writer=self._writer, unix_seconds=time.time(), **fields
        )

    def _create(self, entry: LogEntry) -> bool:
        """Create an entry; False if another writer has its place."""
        try:
            self._backend.create(entry_key(entry.sequence), entry.model_dump_json(exclude_none=True).encode())
        except AlreadyExistsError:
            # A request that was retried after its answer was lost finds its own entry.
            return read_entry(self._backend, entry.sequence).writer == self._writer
        return True

    def _refuse_later_generation(self, newest: LogEntry) -> None:
        if newest.generation > self._generation:
            raise SupersededError(self._superseded_by(newest))

    def _superseded_by(self, entry: LogEntry) -> str:
        return (
            f"{self._backend.url}: generation {entry.generation} owns the checkpoint log since entry {entry.sequence}; "
            f"this process is of generation {self._generation} and stops without committing anything"
        )
