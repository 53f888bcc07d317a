"""What a store holds, as plain data for people and scripts."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from training.checkpoint.backend import Backend, tiers_of
from training.checkpoint.manifest import ChunkRecord, LogEntry
from training.checkpoint.near import last_life, read_records
from training.checkpoint.reading import TRANSFER_THREADS, read_chunk
from training.checkpoint.selection import Selected
from training.checkpoint.store import Listed, list_checkpoints
from training.checkpoint.tags import dropped_sequences, names_by_sequence, read_tags
from training.checkpoint.tiers import Holdings
from training.errors import CorruptCheckpointError

Report = Callable[[int], None]
"""Called with the plain bytes that have been dealt with since the last call; from several threads."""


def describe_checkpoints(backend: Backend) -> list[dict[str, Any]]:
    """All checkpoints that were ever committed, newest first; of two tiers, what each has of them.

    ``condition`` is ``whole`` (everything is there; contents are not read), ``damaged``, ``collected`` (let go by
    retention) or ``lost``.
    """
    holdings = Holdings(backend) if len(tiers_of(backend)) > 1 else None
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
            **_tiers(listed, holdings),
        }
        for listed in list_checkpoints(backend)
    ]


def _tiers(listed: Listed, holdings: Holdings | None) -> dict[str, Any]:
    if holdings is None:
        return {}
    if listed.manifest is None:
        return {"stored_bytes": None, "stored_bytes_by_tier": {}}
    stored = {chunk.key: chunk.stored_bytes for chunk in listed.manifest.chunks}
    return {"stored_bytes": sum(stored.values()), "stored_bytes_by_tier": holdings.of(listed.manifest)}


def describe_near(backend: Backend) -> dict[str, Any] | None:
    """The save that this node's fast tier has and the log has not; None if there is none.

    A start of the run on the same nodes goes on from it if it has the shares of all ranks; see
    :mod:`training.checkpoint.near`.
    """
    records = read_records(backend)
    if not records:
        return None
    newest = max(records, key=lambda record: record.save)
    last = last_life(backend, own_fences=0)
    if newest.epoch != last.epoch or newest.manifest.step <= last.step:
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
    """One checkpoint: its log entry, its manifest without the chunks, and its tensors."""
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
    described["stored_bytes_by_tier"] = Holdings(selected.backend).of(manifest)
    described["tensors"] = {
        name: {"dtype": record.dtype, "shape": record.shape, "bytes": record.bytes}
        for part in manifest.parts
        for name, record in sorted(part.tensors.items())
    }
    return described


@dataclass(frozen=True)
class Verified:
    """A checkpoint, and what reading all of it found wrong."""

    entry: LogEntry
    problems: list[str]


class Verifier:
    """Reads and hashes chunks, each once however many checkpoints share it.

    Args:
        backend: the store.
        report: told of progress.
    """

    def __init__(self, backend: Backend, report: Report) -> None:
        self._backend = backend
        self._report = report
        self._known: dict[str, str | None] = {}

    def verify(self, listed: Listed) -> Verified:
        """Read a checkpoint that has its manifest; the manifest's own hash was checked when it was read."""
        assert listed.manifest is not None, "there is nothing to go by without one"
        records = list({record.key: record for record in listed.manifest.chunks}.values())
        unknown = [record for record in records if record.key not in self._known]
        with ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="checkpoint-verify") as pool:
            for record, problem in zip(unknown, pool.map(self._problem, unknown)):
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
    """Plain bytes of a checkpoint's distinct chunks: what verifying it reads, and reports, at most."""
    assert listed.manifest is not None, "there is nothing to go by without one"
    return sum({record.key: record.bytes for record in listed.manifest.chunks}.values())


def readable(backend: Backend) -> Iterator[Listed]:
    """Checkpoints that still have their manifest, newest first."""
    return (listed for listed in list_checkpoints(backend) if listed.manifest is not None)


def damaged_among_newest(backend: Backend, wanted: int, report: Report) -> set[int]:
    """Log entries that only seem whole, among as many of the newest as it takes to find ``wanted`` that are."""
    verifier = Verifier(backend, report)
    damaged: set[int] = set()
    found = 0
    for listed in list_checkpoints(backend):
        if not listed.is_whole:
            continue
        if verifier.verify(listed).problems:
            damaged.add(listed.entry.sequence)
            continue
        found += 1
        if found == wanted:
            break
    return damaged


def _condition(listed: Listed, dropped: set[int]) -> str:
    if listed.is_whole:
        return "whole"
    if listed.entry.sequence in dropped:
        return "collected"
    return "lost" if listed.manifest is None else "damaged"


def _iso(unix_seconds: float) -> str:
    return datetime.datetime.fromtimestamp(unix_seconds, datetime.timezone.utc).isoformat(timespec="seconds")
