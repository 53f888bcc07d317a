"""Describes and verifies a store's contents. The results are plain data for tables and JSON."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from training.checkpoint.manifest import ChunkRecord, LogEntry
from training.checkpoint.save.local_tier import last_gang, read_records
from training.checkpoint.selection import Selected
from training.checkpoint.storage.backend import Backend, tiers_of
from training.checkpoint.storage.parallel import TRANSFER_THREADS, Report
from training.checkpoint.storage.tiers import TierContents
from training.checkpoint.store import Listed, list_checkpoints, read_chunk
from training.checkpoint.tags import dropped_sequences, names_by_sequence, read_tags
from training.errors import CorruptCheckpointError


def describe_checkpoints(backend: Backend) -> list[dict[str, Any]]:
    """Return all checkpoints ever committed, newest first. With two tiers, include the bytes in each.

    ``condition`` is ``complete`` (all chunks exist, but the contents are not read), ``damaged``, ``collected`` (by
    retention) or ``lost``.
    """
    tiers = TierContents(backend) if len(tiers_of(backend)) > 1 else None
    tags = names_by_sequence(read_tags(backend))
    dropped = dropped_sequences(backend)
    return [
        {
            "step": listed.entry.step,
            "entry": listed.entry.sequence,
            "generation": listed.entry.generation,
            "committed": _iso(listed.entry.unix_seconds),
            "bytes": listed.entry.bytes,
            "written_bytes": listed.entry.written_bytes,
            "reason": listed.entry.reason,
            "validation_loss": listed.entry.validation.loss if listed.entry.validation else None,
            "tags": sorted(tags.get(listed.entry.sequence, [])),
            "condition": _condition(listed, dropped),
            "missing_chunks": len(listed.missing),
            **_bytes_by_tier(listed, tiers),
        }
        for listed in list_checkpoints(backend)
    ]


def _bytes_by_tier(listed: Listed, tiers: TierContents | None) -> dict[str, Any]:
    if tiers is None:
        return {}
    if listed.manifest is None:
        return {"stored_bytes": None, "stored_bytes_by_tier": {}}
    stored = {chunk.key: chunk.stored_bytes for chunk in listed.manifest.chunks}
    return {"stored_bytes": sum(stored.values()), "stored_bytes_by_tier": tiers.stored_bytes(listed.manifest)}


def describe_local(backend: Backend) -> dict[str, Any] | None:
    """Return the save in this node's local tier that is not in the log yet; None if there is none.

    A gang that starts on the same nodes resumes from it if the shares of all ranks exist; see
    :mod:`training.checkpoint.save.local_tier`.
    """
    records = read_records(backend)
    if not records:
        return None
    newest = max(records, key=lambda record: record.save)
    last = last_gang(backend, own_fences=0)
    if newest.fence != last.fence or newest.manifest.step <= last.step:
        return None
    shares = [record for record in records if record.save == newest.save]
    return {
        "step": newest.manifest.step,
        "shares": len(shares),
        "world_size": newest.manifest.world_size,
        "bytes": sum(record.part.plain_bytes for record in shares),
        "store": tiers_of(backend)[0].url,
    }


def describe(selected: Selected) -> dict[str, Any]:
    """Return a checkpoint's log entry, its manifest without the chunks, and its tensors."""
    manifest = selected.manifest
    described = manifest.model_dump(mode="json", exclude={"parts"})
    described["log_entry"] = selected.entry.model_dump(mode="json", exclude_none=True)
    described["tags"] = names_by_sequence(read_tags(selected.backend)).get(selected.entry.sequence, [])
    described["parts"] = [
        {
            "tensors": len(part.tensors),
            "chunks": len(part.chunks),
            "bytes": part.plain_bytes,
            "stored_bytes": sum(chunk.stored_bytes for chunk in part.chunks),
        }
        for part in manifest.parts
    ]
    described["stored_bytes_by_tier"] = TierContents(selected.backend).stored_bytes(manifest)
    described["tensors"] = {
        name: {"dtype": record.dtype, "shape": record.shape, "bytes": record.bytes}
        for part in manifest.parts
        for name, record in sorted(part.tensors.items())
    }
    return described


@dataclass(frozen=True)
class Verified:
    """A checkpoint, and the problems found by reading it."""

    entry: LogEntry
    problems: list[str]


class Verifier:
    """Reads and hashes each chunk once, even if several checkpoints share it.

    Args:
        backend: the checkpoint store.
        report: callback that receives the plain bytes verified.
    """

    def __init__(self, backend: Backend, report: Report) -> None:
        self._backend = backend
        self._report = report
        self._known: dict[str, str | None] = {}

    def verify(self, listed: Listed) -> Verified:
        """Read all chunks of a checkpoint with a manifest. The manifest's hash has already been checked."""
        assert listed.manifest is not None, "the manifest lists the chunks"
        records = list({record.key: record for record in listed.manifest.chunks}.values())
        unknown = [record for record in records if record.key not in self._known]
        with ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="checkpoint-verify") as pool:
            for record, problem in zip(unknown, pool.map(self._problem, unknown), strict=False):
                self._known[record.key] = problem
        self._report(sum(record.bytes for record in records) - sum(record.bytes for record in unknown))
        problems = [self._known[record.key] for record in records]
        return Verified(listed.entry, [problem for problem in problems if problem is not None])

    def _problem(self, record: ChunkRecord) -> str | None:
        try:
            read_chunk(self._backend, record)
        except CorruptCheckpointError as error:
            return str(error)
        finally:
            self._report(record.bytes)
        return None


def unique_bytes(listed: Listed) -> int:
    """Return the plain bytes in a checkpoint's distinct chunks: the maximum that verification reads."""
    assert listed.manifest is not None, "the manifest lists the chunks"
    return sum({record.key: record.bytes for record in listed.manifest.chunks}.values())


def readable(backend: Backend) -> Iterator[Listed]:
    """Return the checkpoints that have a manifest, newest first."""
    return (listed for listed in list_checkpoints(backend) if listed.manifest is not None)


def damaged_among_newest(backend: Backend, wanted: int, report: Report) -> set[int]:
    """Verify checkpoints, newest first, until ``wanted`` are undamaged; return the damaged log entries."""
    verifier = Verifier(backend, report)
    damaged: set[int] = set()
    found = 0
    for listed in list_checkpoints(backend):
        if not listed.is_complete:
            continue
        if verifier.verify(listed).problems:
            damaged.add(listed.entry.sequence)
            continue
        found += 1
        if found == wanted:
            break
    return damaged


def _condition(listed: Listed, dropped: set[int]) -> str:
    if listed.is_complete:
        return "complete"
    if listed.entry.sequence in dropped:
        return "collected"
    return "lost" if listed.manifest is None else "damaged"


def _iso(unix_seconds: float) -> str:
    return datetime.datetime.fromtimestamp(unix_seconds, datetime.UTC).isoformat(timespec="seconds")
