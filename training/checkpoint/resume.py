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
from training.checkpoint.layout import bytes_of, dtype_of
from training.checkpoint.manifest import LogEntry, Manifest, Subject, TensorRecord
from training.checkpoint.near import forget_record, newest_near
from training.checkpoint.reading import read_tensors
from training.checkpoint.state import TrainingState, restore_random_state, seed_random_state
from training.checkpoint.store import checkpoint_entries, read_manifest
from training.distributed import Gang
from training.errors import ConfigurationError, CorruptCheckpointError, StoreError

logger = logging.getLogger(__name__)

RANDOM = "rng/"
"""What names of random states begin with; each rank has its own."""
TRUSTED_ENTRIES = 2
"""Checkpoints that no earlier writer's retention removes, even one that does not know yet that it was superseded."""


@dataclass(frozen=True)
class Resumed:
    """Where a run goes on.

    Attributes:
        manifest: of the checkpoint.
        passed_over: log entries of newer checkpoints that turned out to be damaged.
        is_durable: whether it is in the log; if not, only this gang's nodes have it, and it should be saved soon.
    """

    manifest: Manifest
    passed_over: frozenset[int]
    is_durable: bool = True

    @property
    def chunks_are_kept(self) -> bool:
        """Whether new checkpoints may refer to this one's chunks."""
        return self.is_durable and len(self.passed_over) < TRUSTED_ENTRIES


def resume(
    gang: Gang,
    backend: Backend,
    state: TrainingState,
    subject: Subject | None,
    seed: int,
    most_step: int | None = None,
) -> Resumed | None:
    """Bring ``state`` and this rank's random generators to the newest whole checkpoint; None if there never was one.

    Args:
        most_step: only checkpoints of this step or an earlier one count; None: all do.

    Raises:
        ConfigurationError: the checkpoint is of another model, tokenizer or text.
        StoreError: the store cannot be read, or all of its checkpoints are damaged.
    """
    near = newest_near(gang, backend)
    if near is not None and not _counts(near.step, most_step):
        near = None
    if near is not None:
        try:
            _bring(gang, backend, state, subject, seed, near)
        except CorruptCheckpointError as error:
            logger.warning("step %d, which is not durable yet, is passed over: %s", near.step, error)
            forget_record(backend, gang.rank)
        else:
            logger.info("step %d was not durable yet; this gang's nodes have all of it", near.step)
            return Resumed(near, frozenset(), is_durable=False)
    entries = (entry for entry in checkpoint_entries(backend) if _counts(entry.step, most_step))
    passed_over: set[int] = set()
    while (entry := gang.ask_rank_zero(lambda: next(entries, None))) is not None:
        try:
            manifest = _manifest_together(gang, backend, entry)
            _bring(gang, backend, state, subject, seed, manifest)
        except CorruptCheckpointError as error:
            logger.warning("checkpoint of step %s (log entry %d) is passed over: %s", entry.step, entry.sequence, error)
            passed_over.add(entry.sequence)
            continue
        return Resumed(manifest, frozenset(passed_over))
    if near is not None:
        # The tensors that were read already are no beginning of a run any more.
        raise StoreError(
            f"{backend.url}: has no checkpoint, and the one that was near by is damaged and given up; start again"
        )
    if passed_over:
        raise StoreError(
            f"{backend.url}: none of its {len(passed_over)} checkpoints is whole; restore the missing chunks from a "
            "backup or a version of the bucket, or name a new run to start from the beginning"
        )
    return None


def _counts(step: int | None, most_step: int | None) -> bool:
    return most_step is None or (step is not None and step <= most_step)


def _bring(
    gang: Gang, backend: Backend, state: TrainingState, subject: Subject | None, seed: int, manifest: Manifest
) -> None:
    """Bring the state to one checkpoint.

    Raises:
        CorruptCheckpointError: it is damaged, on all ranks alike; the state may be partly overwritten.
    """
    _refuse_other_subject(manifest, subject, backend.url)
    landing = _Landing(gang, manifest, state.targets(_records(manifest)))
    _read_parts_together(gang, backend, manifest, landing)
    landing.exchange()
    if state.scaler.is_enabled() and manifest.scaler:
        state.scaler.load_state_dict(manifest.scaler)
    state.step, state.position = manifest.step, manifest.position
    _restore_random(gang, manifest, landing.own, seed)


def _manifest_together(gang: Gang, backend: Backend, entry: LogEntry) -> Manifest:
    return gang.ask_rank_zero(lambda: read_manifest(backend, entry))


def _refuse_other_subject(manifest: Manifest, subject: Subject | None, url: str) -> None:
    if subject is None:
        return
    problems = (
        ["it was not saved by this trainer"] if manifest.subject is None else manifest.subject.differences(subject)
    )
    if problems:
        where = f"{url}: the checkpoint of step {manifest.step} does not fit this run"
        raise ConfigurationError([f"{where}: {problem}; undo the change, or name a new run" for problem in problems])


def _records(manifest: Manifest) -> dict[str, TensorRecord]:
    """Tensors that all ranks share, by name.

    Raises:
        CorruptCheckpointError: one of the checkpoint's tensors is of a form that cannot be.
    """
    named = {name: record for part in manifest.parts for name, record in part.tensors.items()}
    for record in named.values():
        dtype_of(record)
    return {name: record for name, record in named.items() if not name.startswith(RANDOM)}


class _Landing:
    """Where tensors are read to: into the state itself where it has the same form, else beside it.

    Attributes:
        own: random state of this rank, once it has been read.
    """

    def __init__(self, gang: Gang, manifest: Manifest, targets: dict[str, Tensor]) -> None:
        self._gang = gang
        self._manifest = manifest
        self._targets = targets
        self._read: dict[str, Tensor] = {}
        self.own: dict[str, Tensor] = {}

    def memory(self, number: int) -> dict[str, memoryview]:
        """Bytes to which a part's tensors are to be read, on the host."""
        memory = {}
        for name, record in self._manifest.parts[number].tensors.items():
            if name.startswith(RANDOM):
                if number != self._gang.rank:
                    continue
                tensor = self.own[name] = torch.empty(record.shape, dtype=dtype_of(record))
            else:
                tensor = self._targets[name].detach()
                if tensor.device.type != "cpu" or tensor.dtype != dtype_of(record) or not tensor.is_contiguous():
                    tensor = torch.empty(record.shape, dtype=dtype_of(record))
                self._read[name] = tensor
            memory[name] = bytes_of(tensor).numpy().data
        return memory

    def exchange(self) -> None:
        """Bring every tensor into the state, on every rank, from the rank that read it."""
        for number, part in enumerate(self._manifest.parts):
            source = number % self._gang.world_size
            for name, record in part.tensors.items():
                if not name.startswith(RANDOM):
                    self._bring(name, record, source)

    def _bring(self, name: str, record: TensorRecord, source: int) -> None:
        target = self._targets[name].detach()
        same_form = target.dtype == dtype_of(record) and target.is_contiguous()
        landed = target if same_form else torch.empty(record.shape, dtype=dtype_of(record), device=self._gang.device)
        read = self._read.pop(name, None)
        if read is not None and read.data_ptr() != landed.data_ptr():
            landed.copy_(read)
        if self._gang.world_size > 1:
            self._gang.broadcast_(landed, source)
        if landed is not target:
            target.copy_(landed)


def _read_parts_together(gang: Gang, backend: Backend, manifest: Manifest, landing: _Landing) -> None:
    """Read this rank's parts; what goes wrong on any rank is raised on all."""
    failure: StoreError | None = None
    try:
        for number in _parts_of(gang, manifest):
            read_tensors(backend, manifest.parts[number], landing.memory(number))
    except StoreError as error:
        failure = error
    gang.raise_together(failure)


def _parts_of(gang: Gang, manifest: Manifest) -> range:
    """Parts that this rank reads; at the same world size, the one it wrote."""
    return range(gang.rank, len(manifest.parts), gang.world_size)


def rng_name(rank: int, generator: str) -> str:
    """Name of a rank's random state among the tensors of its part."""
    return f"{RANDOM}rank-{rank:05d}/{generator}"


def _restore_random(gang: Gang, manifest: Manifest, own: dict[str, Tensor], seed: int) -> None:
    prefix = f"{RANDOM}rank-{gang.rank:05d}/"
    states = {name.removeprefix(prefix): state for name, state in own.items() if name.startswith(prefix)}
    if manifest.world_size != gang.world_size or not states:
        if gang.rank == 0 and states:
            logger.warning(
                "the checkpoint is of %d processes, this gang has %d: random states are derived anew from seed, rank "
                "and step; the global batches stay the same",
                manifest.world_size,
                gang.world_size,
            )
        # Imported weights come without any.
        seed_random_state(seed, gang.rank, manifest.step)
        return
    restore_random_state(states, gang.device)
