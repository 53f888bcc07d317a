"""Checkpoints from one store to another: a branch of a run, a copy on a laptop, a mirror.

Chunks are copied in their stored form and only if the destination does not have them; between directories of one file
system they are linked, inside S3 they do not leave it. The copy is a checkpoint of the destination like any other: it
is committed by a log entry, under a fence of its own, which says that it is a copy and of what.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from training.checkpoint import chunks
from training.checkpoint.backend import Backend, CopiesFrom
from training.checkpoint.inspection import Report
from training.checkpoint.log import LogWriter, newest_first
from training.checkpoint.manifest import ChunkRecord, LogEntry, Manifest, ManifestReference
from training.checkpoint.parallel import results_of
from training.checkpoint.reading import TRANSFER_THREADS
from training.checkpoint.retention import LEAST_KEPT
from training.checkpoint.selection import ENTRY_PREFIX, Selected
from training.checkpoint.store import CHUNK_PREFIX, list_checkpoints
from training.checkpoint.tags import names_by_sequence, put_tag, read_tags
from training.errors import ConfigurationError, CorruptCheckpointError, NotFoundError

COPY_REASON = "copy"


@dataclass(frozen=True)
class TransferPlan:
    """What is to be copied.

    Attributes:
        checkpoints: oldest first.
        missing: chunks that the destination does not have: hash to where they are.
        reused: chunks that it has: hash to its own record.
    """

    checkpoints: list[Selected]
    missing: dict[str, tuple[Backend, ChunkRecord]]
    reused: dict[str, ChunkRecord]

    @property
    def missing_bytes(self) -> int:
        """Stored bytes to copy."""
        return sum(record.stored_bytes for _, record in self.missing.values())

    @property
    def plain_bytes(self) -> int:
        """Plain bytes to copy: what progress is reported in."""
        return sum(record.bytes for _, record in self.missing.values())


def plan_transfer(wanted: Sequence[Selected], destination: Backend) -> TransferPlan:
    """Find out what a copy of some checkpoints takes.

    Of several, those that the destination has copies of are left out; a single one, only if it is the newest there.

    Args:
        wanted: oldest first.
        destination: another store.
    """
    reusable, origins = _holdings(destination)
    there = origins if len(wanted) > 1 else origins[:1]
    checkpoints = [selected for selected in wanted if _origin(selected) not in there]
    missing: dict[str, tuple[Backend, ChunkRecord]] = {}
    reused: dict[str, ChunkRecord] = {}
    for selected in checkpoints:
        for record in selected.manifest.chunks:
            if record.blake3 in reusable:
                reused[record.blake3] = record.model_copy(update={"key": reusable[record.blake3]})
            else:
                missing.setdefault(record.blake3, (selected.backend, record))
    return TransferPlan(checkpoints, missing, reused)


def transfer(plan: TransferPlan, destination: Backend, report: Report) -> list[LogEntry]:
    """Copy; return the new log entries, oldest first.

    Call :func:`require_no_run` before, unless a run at work in the destination may be ended.

    Raises:
        CorruptCheckpointError: a chunk of the source is damaged, or was collected meanwhile.
        SupersededError: a trainer or another copy has taken the destination over.
    """
    if not plan.checkpoints:
        return []
    log = open_log(destination)

    def copy(item: tuple[Backend, ChunkRecord]) -> ChunkRecord:
        source, record = item
        key = f"{CHUNK_PREFIX}{log.epoch:08d}/{record.blake3}"
        _copy_chunk(source, record, destination, key)
        report(record.bytes)
        return record.model_copy(update={"key": key})

    with ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="checkpoint-copy") as pool:
        pending = [pool.submit(copy, item) for item in plan.missing.values()]
        copied = {record.blake3: record for record in results_of(pool, pending)}
    entries = []
    uncounted = {record.key: record.stored_bytes for record in copied.values()}
    for selected in plan.checkpoints:
        manifest = _moved(selected.manifest, {**plan.reused, **copied})
        written_bytes = sum(uncounted.pop(record.key, 0) for record in manifest.chunks)
        entry = commit(manifest, destination, log, _origin(selected), written_bytes)
        for name in names_by_sequence(read_tags(selected.backend)).get(selected.entry.sequence, []):
            put_tag(destination, name, entry)
        entries.append(entry)
    return entries


def commit(manifest: Manifest, destination: Backend, log: LogWriter, origin: str, written_bytes: int) -> LogEntry:
    """Store a manifest whose chunks are there, and make it the newest checkpoint.

    Raises:
        SupersededError: another writer has taken the destination over; nothing was committed.
    """
    content = manifest.model_dump_json().encode()
    key = f"{CHUNK_PREFIX}{log.epoch:08d}/{chunks.plain_hash(content)}"
    destination.put(key, chunks.encode(content, 1))
    return log.append_checkpoint(
        step=manifest.step,
        manifest=ManifestReference(key=key, bytes=len(content)),
        reason=COPY_REASON,
        bytes=sum(part.plain_bytes for part in manifest.parts),
        written_bytes=written_bytes,
        validation=manifest.validation,
        origin=origin,
    )


def open_log(destination: Backend) -> LogWriter:
    """Own the destination from now on. A trainer that starts there later owns it in turn, whatever its generation."""
    newest = next(newest_first(destination), None)
    return LogWriter(destination, newest.generation if newest else 0, COPY_REASON)


def require_no_run(destination: Backend) -> None:
    """Refuse a store that somebody trains in, or did: a copy would end the run, and become its newest checkpoint.

    Raises:
        ConfigurationError: its newest log entry is not of a copy.
    """
    newest = next(newest_first(destination), None)
    if newest is not None and not _is_of_copy(newest):
        raise ConfigurationError(
            [
                f"{destination.url}: is the store of a run (log entry {newest.sequence}: {newest.kind} of generation "
                f"{newest.generation}); give a store of its own to the copy, or --take-over to end the run if it is at "
                "work and make the copy its newest checkpoint"
            ]
        )


def _holdings(destination: Backend) -> tuple[dict[str, str], list[str | None]]:
    """Chunks that nobody deletes before the copy is committed (hash to key), and origins of all, newest first."""
    safe: dict[str, str] = {}
    origins: list[str | None] = []
    present = destination.keys(CHUNK_PREFIX)
    whole = 0
    for listed in list_checkpoints(destination, set(present)):
        if not listed.is_whole or listed.manifest is None:
            continue
        origins.append(listed.entry.origin)
        # Retention of a writer that is not yet ended leaves those of the newest two alone.
        if whole < LEAST_KEPT:
            safe.update((record.blake3, record.key) for record in listed.manifest.chunks)
            whole += 1
    for epoch in _copy_epochs(newest_first(destination)):
        folder = f"{CHUNK_PREFIX}{epoch:08d}/"
        safe.update((key.removeprefix(folder), key) for key in present if key.startswith(folder))
    return safe, origins


def _copy_epochs(entries: Iterable[LogEntry]) -> list[int]:
    """Fences of copies, perhaps broken off, since which nobody has trained and thus collected in the store."""
    epochs = []
    for entry in entries:
        if not _is_of_copy(entry):
            break
        if entry.kind == "fence":
            epochs.append(entry.sequence)
    return epochs


def _is_of_copy(entry: LogEntry) -> bool:
    return entry.reason == COPY_REASON


def _origin(selected: Selected) -> str:
    return f"{selected.backend.url}#{ENTRY_PREFIX}{selected.entry.sequence}"


def _copy_chunk(source: Backend, record: ChunkRecord, destination: Backend, key: str) -> None:
    try:
        if isinstance(destination, CopiesFrom) and destination.copy_from(source, record.key, key):
            return
        stored = source.get(record.key)
    except NotFoundError as error:
        raise CorruptCheckpointError(
            f"{source.url}/{record.key}: is gone since the copy began; tag the checkpoint first, so that it is kept"
        ) from error
    chunks.decode(stored, record.blake3, record.bytes)
    destination.put(key, stored)


def _moved(manifest: Manifest, records: dict[str, ChunkRecord]) -> Manifest:
    """A manifest with other places of its chunks, by their hashes."""
    parts = [
        part.model_copy(update={"chunks": [records[record.blake3] for record in part.chunks]})
        for part in manifest.parts
    ]
    return manifest.model_copy(update={"parts": parts})
