"""Copies checkpoints to another store, for example to branch a run, to work on a laptop, or to mirror a store.

Chunks are copied in their stored form, and only if the destination does not have them. Between directories on one file
system, chunks are linked. Within S3, S3 copies them. The copy is a regular checkpoint in the destination: a log entry
under a new fence commits it and records its origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from training.checkpoint import chunks
from training.checkpoint.address import ENTRY_PREFIX
from training.checkpoint.chunk_listing import MAX_LISTED
from training.checkpoint.log import LogWriter, newest_first
from training.checkpoint.manifest import CHUNK_PREFIX, ChunkRecord, LogEntry, Manifest, chunk_key
from training.checkpoint.retention import MIN_KEPT
from training.checkpoint.selection import Selected
from training.checkpoint.storage.backend import Backend, CopiesFrom
from training.checkpoint.storage.parallel import TRANSFER_THREADS, Report, results_of
from training.checkpoint.store import list_checkpoints, put_manifest
from training.checkpoint.tags import names_by_sequence, put_tag, read_tags
from training.errors import ConfigurationError, CorruptCheckpointError, NotFoundError

COPY_REASON = "copy"


@dataclass(frozen=True)
class TransferPlan:
    """The checkpoints and chunks to copy.

    Attributes:
        checkpoints: checkpoints to copy, oldest first.
        missing: source and record of each chunk that the destination does not have, by hash.
        reused: the destination's record of each chunk that it already has, by hash.
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
        """Plain bytes to copy: the unit of progress."""
        return sum(record.bytes for _, record in self.missing.values())


def plan_transfer(wanted: Sequence[Selected], destination: Backend) -> TransferPlan:
    """Determine the chunks to copy for the given checkpoints.

    If there are several checkpoints, those already copied are omitted. A single checkpoint is omitted only if its copy
    is the newest in the destination.

    Args:
        wanted: checkpoints, oldest first.
        destination: the store to copy to.
    """
    reusable, origins = _reusable_chunks(destination)
    existing = origins if len(wanted) > 1 else origins[:1]
    checkpoints = [selected for selected in wanted if _origin(selected) not in existing]
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
    """Copy the chunks and checkpoints; return the new log entries, oldest first.

    Call :func:`require_no_run` first, unless the call may end a run that is training in the destination.

    Raises:
        CorruptCheckpointError: A chunk in the source is damaged, or was collected during the copy.
        SupersededError: A trainer or another copy has taken over the destination.
    """
    if not plan.checkpoints:
        return []
    log = open_log(destination)

    def copy(item: tuple[Backend, ChunkRecord]) -> ChunkRecord:
        source, record = item
        key = chunk_key(log.fence, record.blake3)
        _copy_chunk(source, record, destination, key)
        report(record.bytes)
        return record.model_copy(update={"key": key})

    with ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="checkpoint-copy") as pool:
        pending = [pool.submit(copy, item) for item in plan.missing.values()]
        copied = {record.blake3: record for record in results_of(pool, pending)}
    entries = []
    uncounted = {record.key: record.stored_bytes for record in copied.values()}
    for selected in plan.checkpoints:
        manifest = _relocated(selected.manifest, {**plan.reused, **copied})
        written_bytes = sum(uncounted.pop(record.key, 0) for record in manifest.chunks)
        entry = commit(manifest, destination, log, _origin(selected), written_bytes)
        for name in names_by_sequence(read_tags(selected.backend)).get(selected.entry.sequence, []):
            put_tag(destination, name, entry)
        entries.append(entry)
    return entries


def commit(manifest: Manifest, destination: Backend, log: LogWriter, origin: str, written_bytes: int) -> LogEntry:
    """Store a manifest after its chunks, and commit it as the newest checkpoint.

    Raises:
        SupersededError: Another writer has taken over the destination; nothing was committed.
    """
    return log.append_checkpoint(
        step=manifest.step,
        manifest=put_manifest(destination, log.fence, manifest),
        reason=COPY_REASON,
        bytes=sum(part.plain_bytes for part in manifest.parts),
        written_bytes=written_bytes,
        validation=manifest.validation,
        origin=origin,
    )


def open_log(destination: Backend) -> LogWriter:
    """Take over the destination. A trainer of any generation that starts there later takes it over again."""
    newest = next(newest_first(destination), None)
    return LogWriter(destination, newest.generation if newest else 0, COPY_REASON)


def require_no_run(destination: Backend) -> None:
    """Reject a run's store, even if the run has ended: a copy would end the run and become its newest checkpoint.

    Raises:
        ConfigurationError: The newest log entry does not belong to a copy.
    """
    newest = next(newest_first(destination), None)
    if newest is not None and not _is_of_copy(newest):
        raise ConfigurationError(
            [
                f"{destination.url}: a run's store (log entry {newest.sequence}: {newest.kind} of generation "
                f"{newest.generation}); copy to another store, or use --take-over, which ends the run if it is "
                "training and makes the copy its newest checkpoint"
            ]
        )


def _reusable_chunks(destination: Backend) -> tuple[dict[str, str], list[str | None]]:
    """Return the chunks that no process deletes before the commit, by hash, and all origins, newest first."""
    safe: dict[str, str] = {}
    origins: list[str | None] = []
    complete = 0
    for listed in list_checkpoints(destination):
        if not listed.is_complete or listed.manifest is None:
            continue
        origins.append(listed.entry.origin)
        # A running writer keeps the newest two.
        if complete < MIN_KEPT:
            safe.update((record.blake3, record.key) for record in listed.manifest.chunks)
            complete += 1
    for fence in _copy_fences(newest_first(destination)):
        folder = f"{CHUNK_PREFIX}{fence:08d}/"
        safe.update((key.removeprefix(folder), key) for key in destination.keys(folder, MAX_LISTED))
    return safe, origins


def _copy_fences(entries: Iterable[LogEntry]) -> list[int]:
    """Return the fences of copies, finished or not, after the last run. No run has collected chunks since then."""
    fences = []
    for entry in entries:
        if not _is_of_copy(entry):
            break
        if entry.kind == "fence":
            fences.append(entry.sequence)
    return fences


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
            f"{source.url}/{record.key}: deleted after the copy began; tag the checkpoint first to keep it"
        ) from error
    chunks.decode(stored, record.blake3, record.bytes)
    destination.put(key, stored)


def _relocated(manifest: Manifest, records: dict[str, ChunkRecord]) -> Manifest:
    """Return the manifest with its chunk references replaced by these records, by hash."""
    parts = [
        part.model_copy(update={"chunks": [records[record.blake3] for record in part.chunks]})
        for part in manifest.parts
    ]
    return manifest.model_copy(update={"parts": parts})
