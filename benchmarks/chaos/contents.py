"""What a checkpoint store holds, read back and verified by the experimenter rather than by the run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import torch

from training.checkpoint.backend import Backend
from training.checkpoint.layout import tensor_at
from training.checkpoint.manifest import LogEntry, Manifest
from training.checkpoint.store import checkpoint_entries, read_manifest, read_part
from training.errors import CorruptCheckpointError


@dataclass(frozen=True)
class Found:
    """A committed checkpoint, and why it cannot be read; None: it can."""

    entry: LogEntry
    problem: str | None

    @property
    def step(self) -> int:
        """Optimizer steps that it holds."""
        assert self.entry.step is not None, "an entry of a checkpoint has a step"
        return self.entry.step


def checkpoints(backend: Backend) -> Iterator[Found]:
    """Committed checkpoints, newest first, every byte of each read and hashed."""
    for entry in checkpoint_entries(backend):
        try:
            for part in read_manifest(backend, entry).parts:
                read_part(backend, part)
        except CorruptCheckpointError as error:
            yield Found(entry, str(error))
        else:
            yield Found(entry, None)


def newest_whole_step(backend: Backend) -> int | None:
    """Step of the newest checkpoint that can be read; None if there is none."""
    return next((found.step for found in checkpoints(backend) if found.problem is None), None)


def steps_after(backend: Backend, step: int) -> set[int]:
    """Steps of the newest checkpoints, as long as they are later than ``step``; none of them is read."""
    return {entry.step or 0 for entry in takewhile(lambda each: (each.step or 0) > step, checkpoint_entries(backend))}


def newest_tensors(backend: Backend) -> dict[str, torch.Tensor]:
    """Everything in the newest checkpoint, the ranks' random states among it."""
    manifest: Manifest = read_manifest(backend, next(checkpoint_entries(backend)))
    tensors: dict[str, torch.Tensor] = {}
    for part in manifest.parts:
        flat = torch.frombuffer(bytearray(read_part(backend, part)), dtype=torch.uint8)
        tensors |= {name: tensor_at(flat, record) for name, record in part.tensors.items()}
    return tensors


def differences(backend: Backend, other: Backend) -> list[str]:
    """Names of tensors whose bits differ, or that only one of the two newest checkpoints has."""
    ours, theirs = newest_tensors(backend), newest_tensors(other)
    shared = ours.keys() & theirs.keys()
    return sorted(ours.keys() ^ theirs.keys()) + sorted(
        name for name in shared if not torch.equal(ours[name], theirs[name])
    )


def newest_chunk_file(backend: Backend, root: Path, choice: random.Random) -> Path:
    """A file of the newest checkpoint's in a directory store, chosen at random."""
    manifest = read_manifest(backend, next(checkpoint_entries(backend)))
    return root / choice.choice(sorted({chunk.key for chunk in manifest.chunks}))
