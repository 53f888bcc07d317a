"""Reads and verifies a checkpoint store from outside the run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import torch

from training.checkpoint.layout import views_of
from training.checkpoint.manifest import ChunkRecord, LogEntry, Manifest
from training.checkpoint.storage.backend import Backend
from training.checkpoint.store import checkpoint_entries, read_manifest, read_part
from training.errors import CorruptCheckpointError


@dataclass(frozen=True)
class Found:
    """A committed checkpoint, and the reason why it cannot be read, if any."""

    entry: LogEntry
    problem: str | None

    @property
    def step(self) -> int:
        """Number of optimizer steps that the saved state has completed."""
        assert self.entry.step is not None, "a checkpoint entry has a step"
        return self.entry.step


def checkpoints(backend: Backend) -> Iterator[Found]:
    """Yield committed checkpoints, newest first; every byte is read and hashed."""
    for entry in checkpoint_entries(backend):
        try:
            for part in read_manifest(backend, entry).parts:
                read_part(backend, part)
        except CorruptCheckpointError as error:
            yield Found(entry, str(error))
        else:
            yield Found(entry, None)


def newest_readable_step(backend: Backend) -> int | None:
    """Return the step of the newest readable checkpoint; None if there is none."""
    return next((found.step for found in checkpoints(backend) if found.problem is None), None)


def steps_after(backend: Backend, step: int) -> set[int]:
    """Return the steps of the newest checkpoints down to ``step``, without reading them."""
    return {entry.step or 0 for entry in takewhile(lambda each: (each.step or 0) > step, checkpoint_entries(backend))}


def newest_tensors(backend: Backend) -> dict[str, torch.Tensor]:
    """Return all tensors in the newest checkpoint, including the ranks' RNG states."""
    manifest: Manifest = read_manifest(backend, next(checkpoint_entries(backend)))
    tensors: dict[str, torch.Tensor] = {}
    for part in manifest.parts:
        flat = torch.frombuffer(bytearray(read_part(backend, part)), dtype=torch.uint8)
        tensors |= views_of(flat, part.tensors)
    return tensors


def differences(backend: Backend, other: Backend) -> list[str]:
    """Return the names of tensors that differ between the newest checkpoints of two stores or exist in only one."""
    ours, theirs = newest_tensors(backend), newest_tensors(other)
    shared = ours.keys() & theirs.keys()
    return sorted(ours.keys() ^ theirs.keys()) + sorted(
        name for name in shared if not torch.equal(ours[name], theirs[name])
    )


def newest_chunk_file(backend: Backend, root: Path, choice: random.Random) -> Path:
    """Return the file of a random chunk in a directory store that only the newest checkpoint contains.

    Checkpoints share the chunks that have not changed, such as unused RNG states. If a shared chunk is damaged, all of
    these checkpoints are lost (docs/checkpoint-format.md, "Failures").
    """
    newest, *others = checkpoint_entries(backend)
    shared = {chunk.key for entry in others for chunk in _chunks(backend, entry)}
    return root / choice.choice(sorted({chunk.key for chunk in _chunks(backend, newest)} - shared))


def _chunks(backend: Backend, entry: LogEntry) -> list[ChunkRecord]:
    try:
        return read_manifest(backend, entry).chunks
    except CorruptCheckpointError:  # retention has collected it
        return []
