"""Garbage collection: chunks that no kept checkpoint reaches are deleted, beside writers that may be at work.

Why it is safe. A writer stores new chunks in a folder of its own, named by its fence, and refers to older chunks only
if the newest checkpoint that it knows to be whole has them. So a collection deletes from folders of writers whose
state it knows (its own, or those that a later fence has ended), keeps the newest two checkpoints whatever it is told,
and may then run at any moment of any writer's life.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from training.checkpoint.backend import Backend
from training.checkpoint.log import read_entry, sequences
from training.checkpoint.manifest import LogEntry
from training.checkpoint.reading import TRANSFER_THREADS
from training.checkpoint.retention import LEAST_KEPT, Retention
from training.checkpoint.store import CHUNK_PREFIX, read_manifest
from training.checkpoint.tags import dropped_sequences, mark_dropped, names_by_sequence, read_tags, unmark_dropped
from training.errors import CorruptCheckpointError, NotFoundError

logger = logging.getLogger(__name__)

_CHUNK_KEY = re.compile(r"chunks/([0-9]{8})/[0-9a-f]{64}")


@dataclass(frozen=True)
class CollectionPlan:
    """What a collection would do.

    Attributes:
        kept: log entries that stay, with the reasons.
        dropped: checkpoints of which something is still there, and that go.
        garbage: keys of the chunks that go, those that no checkpoint ever had among them.
        left: number of chunks that nothing kept needs either, but of writers that may be at work.
    """

    kept: dict[int, list[str]]
    dropped: list[LogEntry]
    garbage: list[str]
    left: int = 0


class GarbageCollector:
    """Applies a retention policy to a store, again and again; what never changes is read once.

    Args:
        backend: the store.
        retention: what is kept.
    """

    def __init__(self, backend: Backend, retention: Retention) -> None:
        self._backend = backend
        self._retention = retention
        self._entries: dict[int, LogEntry | None] = {}
        self._chunks: dict[int, frozenset[str]] = {}
        self._dropped: set[int] | None = None

    def collect(self, epoch: int, distrusted: Collection[int] = ()) -> CollectionPlan:
        """Delete what no kept checkpoint needs.

        Args:
            epoch: newest fence whose writer is the caller, between its saves, or has been ended by a later fence.
            distrusted: sequences of entries whose contents turned out to be damaged; they do not count.

        Returns:
            What was done.

        Raises:
            StoreError: the store cannot be read or written; nothing that is kept was touched.
        """
        plan = self.plan(epoch, distrusted)
        if not plan.garbage:
            return plan
        fresh = {entry.sequence for entry in plan.dropped}
        for sequence in sorted(fresh):
            mark_dropped(self._backend, sequence)
        # Whoever tagged one of these without seeing its mark has written the tag by now; see training.checkpoint.tags.
        tagged = names_by_sequence(read_tags(self._backend))
        spared = fresh & tagged.keys()
        if spared:
            unmark_dropped(self._backend, spared)
            needed = frozenset[str]().union(*(self._chunks.get(sequence, ()) for sequence in spared))
            plan = replace(
                plan,
                kept={**plan.kept, **{sequence: [f"tag {name}" for name in tagged[sequence]] for sequence in spared}},
                dropped=[entry for entry in plan.dropped if entry.sequence not in spared],
                garbage=[key for key in plan.garbage if key not in needed],
            )
        self._backend.delete(plan.garbage)
        self._forget(fresh - spared)
        return plan

    def plan(self, epoch: int, distrusted: Collection[int] = ()) -> CollectionPlan:
        """Say what :meth:`collect` would do now; arguments and errors are its own."""
        entries = self._checkpoints()
        tags = names_by_sequence(read_tags(self._backend))
        present = set(self._backend.keys(CHUNK_PREFIX))
        remains = [entry for entry in entries if entry.manifest is not None and entry.manifest.key in present]
        whole = [
            entry
            for entry in remains
            if entry.sequence not in distrusted and self._reachable(entry) and self._reachable(entry) <= present
        ]
        kept = self._retention.kept(whole, tags)
        if len(whole) < max(LEAST_KEPT, self._retention.keep_last):
            # There may be a damaged one whose remains are worth an inspection.
            return CollectionPlan(kept, [], [])
        needed = frozenset[str]().union(
            *(self._reachable(entry) for entry in remains if entry.sequence in kept or entry.sequence in tags)
        )
        unneeded = present - needed
        garbage = sorted(key for key in unneeded if _is_of_epoch(key, epoch))
        going = set(garbage)
        dropped = [
            entry
            for entry in remains
            if entry.sequence not in kept and entry.sequence not in tags and entry.manifest is not None
            if entry.manifest.key in going or self._reachable(entry) & going
        ]
        return CollectionPlan(kept, dropped, garbage, left=len(unneeded) - len(garbage))

    def ended_epoch(self) -> int:
        """Newest fence whose writer has been ended by a later one; -1 if there is none.

        What a collection from outside may touch, beside a writer that may be at work.
        """
        self._read_log()
        # A damaged entry may be a fence too; taking it for one only spares more.
        fences = [sequence for sequence, entry in self._entries.items() if entry is None or entry.kind == "fence"]
        return max(fences, default=0) - 1

    def newest_sequence(self) -> int:
        """Newest log entry; -1 if there is none. What a collection may touch that ends all writers first."""
        self._read_log()
        return max(self._entries, default=-1)

    def _checkpoints(self) -> list[LogEntry]:
        """Checkpoints that have not been let go, newest first."""
        self._read_log()
        found = [self._entries[sequence] for sequence in sorted(self._entries, reverse=True)]
        return [entry for entry in found if entry is not None and entry.kind == "checkpoint"]

    def _read_log(self) -> None:
        if self._dropped is None:
            self._dropped = dropped_sequences(self._backend)
        known = self._dropped | self._entries.keys()
        unread = [sequence for sequence in sequences(self._backend) if sequence not in known]
        with ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="checkpoint-log") as pool:
            self._entries.update(zip(unread, pool.map(self._entry, unread)))

    def _forget(self, dropped: set[int]) -> None:
        assert self._dropped is not None, "the log was read"
        self._dropped |= dropped
        for sequence in dropped:
            self._entries.pop(sequence, None)
            self._chunks.pop(sequence, None)

    def _entry(self, sequence: int) -> LogEntry | None:
        try:
            return read_entry(self._backend, sequence)
        except (CorruptCheckpointError, NotFoundError) as error:
            logger.warning("log entry %d is passed over: %s", sequence, error)
            return None

    def _reachable(self, entry: LogEntry) -> frozenset[str]:
        """Keys of an entry's manifest and chunks; empty if the manifest is damaged."""
        if entry.sequence not in self._chunks:
            try:
                manifest = read_manifest(self._backend, entry)
            except CorruptCheckpointError as error:
                logger.warning("checkpoint of step %s (log entry %d): %s", entry.step, entry.sequence, error)
                return frozenset()
            assert entry.manifest is not None, "its manifest was read"
            self._chunks[entry.sequence] = frozenset(
                [entry.manifest.key, *(chunk.key for chunk in manifest.chunks)],
            )
        return self._chunks[entry.sequence]


def _is_of_epoch(key: str, newest: int) -> bool:
    match = _CHUNK_KEY.fullmatch(key)
    return match is not None and int(match.group(1)) <= newest
