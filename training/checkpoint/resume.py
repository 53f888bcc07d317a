"""Resuming: the newest checkpoint that is whole and fits, read once by the gang together.

Each rank reads and verifies a share of the parts and sends its tensors to the others. A damaged checkpoint is passed
over loudly, by all ranks alike; one of another model or other text is refused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from training.checkpoint.backend import Backend
from training.checkpoint.layout import tensor_at
from training.checkpoint.manifest import LogEntry, Manifest, Subject
from training.checkpoint.state import TrainingState, restore_random_state, seed_random_state
from training.checkpoint.store import checkpoint_entries, read_manifest, read_part
from training.distributed import Gang
from training.errors import ConfigurationError, CorruptCheckpointError, StoreError

logger = logging.getLogger(__name__)

TRUSTED_ENTRIES = 2
"""Checkpoints that no earlier writer's retention removes, even one that does not know yet that it was superseded."""


@dataclass(frozen=True)
class Resumed:
    """Where a run goes on.

    Attributes:
        manifest: of the checkpoint.
        passed_over: log entries of newer checkpoints that turned out to be damaged.
    """

    manifest: Manifest
    passed_over: frozenset[int]

    @property
    def chunks_are_kept(self) -> bool:
        """Whether new checkpoints may refer to this one's chunks."""
        return len(self.passed_over) < TRUSTED_ENTRIES


def resume(gang: Gang, backend: Backend, state: TrainingState, subject: Subject, seed: int) -> Resumed | None:
    """Bring ``state`` and this rank's random generators to the newest whole checkpoint; None if there never was one.

    Raises:
        ConfigurationError: the checkpoint is of another model, tokenizer or text.
        StoreError: the store cannot be read, or all of its checkpoints are damaged.
    """
    entries = checkpoint_entries(backend)
    passed_over: set[int] = set()
    while (entry := gang.ask_rank_zero(lambda: next(entries, None))) is not None:
        try:
            manifest = _manifest_together(gang, backend, entry)
            _refuse_other_subject(manifest, subject, backend.url)
            flats = _read_parts_together(gang, backend, manifest)
        except CorruptCheckpointError as error:
            logger.warning("checkpoint of step %s (log entry %d) is passed over: %s", entry.step, entry.sequence, error)
            passed_over.add(entry.sequence)
            continue
        state.load(_exchange(gang, manifest, flats))
        if state.scaler.is_enabled() and manifest.scaler:
            state.scaler.load_state_dict(manifest.scaler)
        state.step, state.position = manifest.step, manifest.position
        _restore_random(gang, manifest, flats, seed)
        return Resumed(manifest, frozenset(passed_over))
    if passed_over:
        raise StoreError(
            f"{backend.url}: none of its {len(passed_over)} checkpoints is whole; restore the missing chunks from a "
            "backup or a version of the bucket, or name a new run to start from the beginning"
        )
    return None


def _manifest_together(gang: Gang, backend: Backend, entry: LogEntry) -> Manifest:
    return gang.ask_rank_zero(lambda: read_manifest(backend, entry))


def _refuse_other_subject(manifest: Manifest, subject: Subject, url: str) -> None:
    problems = manifest.subject.differences(subject)
    if problems:
        where = f"{url}: the checkpoint of step {manifest.step} does not fit this run"
        raise ConfigurationError([f"{where}: {problem}; undo the change, or name a new run" for problem in problems])


def _read_parts_together(gang: Gang, backend: Backend, manifest: Manifest) -> dict[int, Tensor]:
    """Read this rank's parts; what goes wrong on any rank is raised on all."""
    flats: dict[int, Tensor] = {}
    failure: StoreError | None = None
    try:
        for part in _parts_of(gang, manifest):
            flats[part] = _as_tensor(read_part(backend, manifest.parts[part]))
    except StoreError as error:
        failure = error
    gang.raise_together(failure)
    return flats


def _parts_of(gang: Gang, manifest: Manifest) -> range:
    """Parts that this rank reads; at the same world size, the one it wrote."""
    return range(gang.rank, len(manifest.parts), gang.world_size)


def _as_tensor(flat: bytearray) -> Tensor:
    return torch.frombuffer(flat, dtype=torch.uint8) if flat else torch.empty(0, dtype=torch.uint8)


def _exchange(gang: Gang, manifest: Manifest, flats: dict[int, Tensor]) -> dict[str, Tensor]:
    """Send every tensor from the rank that read it to all others; they end up on the device."""
    tensors = {}
    for number, part in enumerate(manifest.parts):
        for name, record in part.tensors.items():
            if name.startswith("rng/"):
                continue
            dtype = getattr(torch, record.dtype)
            if number in flats:
                tensor = tensor_at(flats[number], record).to(gang.device)
            else:
                tensor = torch.empty(record.shape, dtype=dtype, device=gang.device)
            gang.broadcast_(tensor, number % gang.world_size)
            tensors[name] = tensor
    return tensors


def rng_name(rank: int, generator: str) -> str:
    """Name of a rank's random state among the tensors of its part."""
    return f"rng/rank-{rank:05d}/{generator}"


def _restore_random(gang: Gang, manifest: Manifest, flats: dict[int, Tensor], seed: int) -> None:
    if manifest.world_size != gang.world_size:
        if gang.rank == 0:
            logger.warning(
                "the checkpoint is of %d processes, this gang has %d: random states are derived anew from seed, rank "
                "and step; the global batches stay the same",
                manifest.world_size,
                gang.world_size,
            )
        seed_random_state(seed, gang.rank, manifest.step)
        return
    prefix = f"rng/rank-{gang.rank:05d}/"
    part = manifest.parts[gang.rank]
    states = {
        name.removeprefix(prefix): tensor_at(flats[gang.rank], record).clone()
        for name, record in part.tensors.items()
        if name.startswith(prefix)
    }
    restore_random_state(states, gang.device)
