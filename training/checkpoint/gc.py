"""Garbage collection: deletes the chunks that no kept checkpoint refers to, even while writers are running.

A collection is safe while writers are running, for these reasons. A writer stores new chunks in a folder named by its
fence. It reuses older chunks only if they belong to the newest checkpoint known to be complete. A collection deletes
chunks only from the folders of the caller and of writers invalidated by a later fence. It always keeps the newest two
checkpoints.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from training.checkpoint.chunk_listing import MAX_LISTED, ChunkListing
from training.checkpoint.log import read_entry, sequences
from training.checkpoint.manifest import CHUNK_PREFIX, LogEntry
from training.checkpoint.retention import MIN_KEPT, Retention
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.parallel import TRANSFER_THREADS
from training.checkpoint.store import read_manifest
from training.checkpoint.tags import dropped_sequences, mark_dropped, names_by_sequence, read_tags, unmark_dropped
from training.errors import CorruptCheckpointError, NotFoundError

logger = logging.getLogger(__name__)

_CHUNK_KEY = re.compile(r"chunks/([0-9]{8})/[0-9a-f]{64}")


@dataclass(frozen=True)
class CollectionPlan:
    """A collection's actions.

    Attributes:
        kept: log entries to keep, with the reasons.
        dropped: checkpoints whose chunks are deleted.
        garbage: keys of the chunks to delete, including chunks that no checkpoint ever referred to.
        left: number of unneeded chunks that remain because their writers may still be running.
    """

    kept: dict[int, list[str]]
    dropped: list[LogEntry]
    garbage: list[str]
    left: int = 0


class GarbageCollector:
    """Applies a retention policy to a store, repeatedly. Immutable objects are read only once.

    Args:
        backend: the checkpoint store.
        retention: the retention rules.
    """

    def __init__(self, backend: Backend, retention: Retention) -> None:
        self._backend = backend
        self._retention = retention
        self._entries: dict[int, LogEntry | None] = {}
        self._chunks: dict[int, frozenset[str]] = {}
        self._dropped: set[int] | None = None
        self._has_reported = False

    def collect(self, fence: int, damaged: Collection[int] = ()) -> CollectionPlan:
        """Delete chunks that no kept checkpoint needs.

        Args:
            fence: newest fence whose writer was invalidated by a later fence, or is the caller between two saves.
            damaged: sequence numbers of entries with damaged contents. The rules ignore them.

        Returns:
            The actions taken.

        Raises:
            StoreError: The store cannot be read or written; kept checkpoints are unchanged.
        """
        plan = self.plan(fence, damaged)
        if not plan.garbage:
            return plan
        fresh = {entry.sequence for entry in plan.dropped}
        for sequence in sorted(fresh):
            mark_dropped(self._backend, sequence)
        # A process that tagged one of these before its marker existed has written the tag by now; see `tags`.
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

    def plan(self, fence: int, damaged: Collection[int] = ()) -> CollectionPlan:
        """Return the actions that :meth:`collect` would take now, with the same arguments and errors."""
        entries = self._checkpoints()
        tags = names_by_sequence(read_tags(self._backend))
        listing = self._list_chunks()
        gone = set(listing.missing([entry.manifest.key for entry in entries if entry.manifest is not None]))
        remains = [entry for entry in entries if entry.manifest is not None and entry.manifest.key not in gone]
        complete = [
            entry
            for entry in remains
            if entry.sequence not in damaged and self._reachable(entry) and not listing.missing(self._reachable(entry))
        ]
        kept = self._retention.kept(complete, tags)
        if len(complete) < max(MIN_KEPT, self._retention.keep_last):
            # Too few checkpoints are complete. Delete nothing: the chunks of damaged ones are worth inspecting.
            return CollectionPlan(kept, [], [])
        needed = frozenset[str]().union(
            *(self._reachable(entry) for entry in remains if entry.sequence in kept or entry.sequence in tags)
        )
        unneeded = listing.known - needed
        garbage = sorted(key for key in unneeded if _is_of_fence(key, fence))
        going = set(garbage)
        dropped = [
            entry
            for entry in remains
            if entry.sequence not in kept and entry.sequence not in tags and entry.manifest is not None
            if entry.manifest.key in going or self._reachable(entry) & going
        ]
        return CollectionPlan(kept, dropped, garbage, left=len(unneeded) - len(garbage))

    def ended_fence(self) -> int:
        """Return the newest fence whose writer was invalidated by a later fence; -1 if there is none.

        This is the limit for a collection by another process while a writer may be running.
        """
        self._read_log()
        # A damaged entry may be a fence. Treating it as one is safe: at worst, fewer chunks are deleted.
        fences = [sequence for sequence, entry in self._entries.items() if entry is None or entry.kind == "fence"]
        return max(fences, default=0) - 1

    def newest_sequence(self) -> int:
        """Return the newest entry: the limit for a collection that first fences off all writers; -1 if none exists."""
        self._read_log()
        return max(self._entries, default=-1)

    def _list_chunks(self) -> ChunkListing:
        listing = ChunkListing(self._backend)
        if not listing.is_complete and not self._has_reported:
            self._has_reported = True
            logger.warning(
                "%s/%s: has more than %d objects; garbage is only found among the first ones and in the folders of "
                "checkpoints. Keep fewer checkpoints, and remove the objects that are not chunks",
                self._backend.url, CHUNK_PREFIX, MAX_LISTED,
            )  # fmt: skip
        return listing

    def _checkpoints(self) -> list[LogEntry]:
        """Return the checkpoints that have not been dropped, newest first."""
        self._read_log()
        found = [self._entries[sequence] for sequence in sorted(self._entries, reverse=True)]
        return [entry for entry in found if entry is not None and entry.kind == "checkpoint"]

    def _read_log(self) -> None:
        if self._dropped is None:
            self._dropped = dropped_sequences(self._backend)
        known = self._dropped | self._entries.keys()
        unread = [sequence for sequence in sequences(self._backend) if sequence not in known]
        with ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="checkpoint-log") as pool:
            self._entries.update(zip(unread, pool.map(self._entry, unread), strict=False))

    def _forget(self, dropped: set[int]) -> None:
        assert self._dropped is not None, "call read_log first"
        self._dropped |= dropped
        for sequence in dropped:
            self._entries.pop(sequence, None)
            self._chunks.pop(sequence, None)

    def _entry(self, sequence: int) -> LogEntry | None:
        try:
            return read_entry(self._backend, sequence)
        except (CorruptCheckpointError, NotFoundError) as error:
            logger.warning("skipping log entry %d: %s", sequence, error)
            return None

    def _reachable(self, entry: LogEntry) -> frozenset[str]:
        """Return the keys of an entry's manifest and chunks; empty if the manifest is damaged."""
        if entry.sequence not in self._chunks:
            try:
                manifest = read_manifest(self._backend, entry)
            except CorruptCheckpointError as error:
                logger.warning("checkpoint for step %s (log entry %d): %s", entry.step, entry.sequence, error)
                return frozenset()
            assert entry.manifest is not None, "its manifest was read"
            self._chunks[entry.sequence] = frozenset(
                [entry.manifest.key, *(chunk.key for chunk in manifest.chunks)],
            )
        return self._chunks[entry.sequence]


def _is_of_fence(key: str, newest: int) -> bool:
    match = _CHUNK_KEY.fullmatch(key)
    return match is not None and int(match.group(1)) <= newest
