"""Resumes a gang from the newest checkpoint that is complete and matches the run.

Each rank reads and verifies a share of the parts, and broadcasts the tensors. All ranks skip a damaged checkpoint, with
a warning. A checkpoint from a different model or dataset is rejected.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from training.checkpoint.layout import bytes_of, dtype_of
from training.checkpoint.manifest import LogEntry, Manifest, Subject, TensorRecord
from training.checkpoint.save.local_tier import delete_record, last_gang, read_record
from training.checkpoint.state.generators import random_state, restore_random_state, seed_random_state
from training.checkpoint.state.training_state import Captured, TrainingState
from training.checkpoint.state.values import decode
from training.checkpoint.storage.backend import Backend
from training.checkpoint.store import checkpoint_entries, read_manifest, read_tensors
from training.errors import ConfigurationError, CorruptCheckpointError, StoreError
from training.process.distributed import Gang

logger = logging.getLogger(__name__)

RESUMED_LOCALLY = "resumed from the local tier of this gang's nodes"
"""Logged when the newest checkpoint is not durable yet. The chaos benchmark searches for this text."""
RANDOM = "rng/"
"""Name prefix of the tensors that are specific to each rank: its RNG states and its own extra state."""
RANK_EXTRA = "extra"
"""Name of a rank's extra state among these tensors: a JSON document as bytes. Shape: [bytes] uint8."""
EXTRA_STEP_BYTES = 4096
"""Spaces pad the document to a multiple of this size, so that the layout of the save rarely changes."""
TRUSTED_ENTRIES = 2
"""Number of newest checkpoints that an earlier writer keeps, even before it detects that it has been superseded."""


@dataclass(frozen=True)
class Resumed:
    """The checkpoint that a run resumed from.

    Attributes:
        manifest: the checkpoint's manifest.
        damaged: log entries for newer checkpoints that were skipped because they are damaged.
        is_durable: True if the checkpoint is in the log. If False, only this gang's nodes have it, and the state should
            be saved soon.
        rank_extra: this rank's extra state; empty if the world size has changed.
    """

    manifest: Manifest
    damaged: frozenset[int]
    is_durable: bool = True
    rank_extra: dict[str, Any] = field(default_factory=dict)

    @property
    def has_reusable_chunks(self) -> bool:
        """True if new checkpoints may refer to this checkpoint's chunks."""
        return self.is_durable and len(self.damaged) < TRUSTED_ENTRIES


def resume(
    gang: Gang,
    backend: Backend,
    state: TrainingState,
    subject: Subject | None,
    seed: int,
    max_step: int | None = None,
) -> Resumed | None:
    """Load the newest complete checkpoint into ``state`` and this rank's random number generators.

    Args:
        gang: this process's gang; all ranks make the same call.
        backend: the checkpoint store.
        state: state to overwrite.
        subject: this run's model, dataset and tokenizer; None: do not compare.
        seed: seed for the RNG states if the world size has changed.
        max_step: ignore checkpoints after this step; None: consider all checkpoints.

    Returns:
        The checkpoint; None if the store has never contained one.

    Raises:
        ConfigurationError: The checkpoint has another model, tokenizer, dataset or schema version.
        StoreError: The store cannot be read, or all of its checkpoints are damaged.
    """
    local = newest_local(gang, backend)
    if local is not None and not _is_considered(local.step, max_step):
        local = None
    if local is not None:
        try:
            rank_extra = _load(gang, backend, state, subject, seed, local)
        except CorruptCheckpointError as error:
            logger.warning("skipping step %d in the local tier, which is not durable yet: %s", local.step, error)
            delete_record(backend, gang.rank)
        else:
            logger.info("%s: step %d, not durable yet", RESUMED_LOCALLY, local.step)
            return Resumed(local, frozenset(), is_durable=False, rank_extra=rank_extra)
    entries = (entry for entry in checkpoint_entries(backend) if _is_considered(entry.step, max_step))
    damaged: set[int] = set()
    while (entry := gang.ask_rank_zero(lambda: next(entries, None))) is not None:
        try:
            manifest = _read_manifest_together(gang, backend, entry)
            rank_extra = _load(gang, backend, state, subject, seed, manifest)
        except CorruptCheckpointError as error:
            logger.warning("skipping the checkpoint for step %s (log entry %d): %s", entry.step, entry.sequence, error)
            damaged.add(entry.sequence)
            continue
        return Resumed(manifest, frozenset(damaged), rank_extra=rank_extra)
    if local is not None:
        # The state may be partly overwritten, so this process cannot start a new run.
        raise StoreError(
            f"{backend.url}: has no checkpoint, and the one in the local tier was corrupt and has been deleted; "
            "start the process again"
        )
    if damaged:
        raise StoreError(
            f"{backend.url}: none of its {len(damaged)} checkpoints is complete and undamaged; restore the missing "
            "chunks from a backup or from earlier object versions, or name a new run to start from the beginning"
        )
    return None


def own_tensors(gang: Gang, captured: Captured, rank_extra: dict[str, Any] | None = None) -> dict[str, Tensor]:
    """Return the tensors that only this rank saves, by name: its RNG states and, on rank 0, the buffers.

    Args:
        gang: this process's gang.
        captured: the run's state.
        rank_extra: this rank's extra state, encoded.
    """
    states = random_state(gang.device)
    if rank_extra:
        document = bytearray(json.dumps(rank_extra).encode())
        document += b" " * (-len(document) % EXTRA_STEP_BYTES)
        states[RANK_EXTRA] = torch.frombuffer(document, dtype=torch.uint8)
    random = {f"{_random_prefix(gang.rank)}{generator}": state for generator, state in states.items()}
    return random | captured.of_rank(gang.rank)


def _random_prefix(rank: int) -> str:
    return f"{RANDOM}rank-{rank:05d}/"


def _is_considered(step: int | None, max_step: int | None) -> bool:
    return max_step is None or (step is not None and step <= max_step)


def newest_local(gang: Gang, backend: Backend) -> Manifest | None:
    """Find a checkpoint on this gang's nodes that is newer than all checkpoints in the log.

    Call this function after appending the gang's own fence, so that an earlier gang that is still copying can no longer
    commit.

    Returns:
        The checkpoint's manifest, the same on all ranks; None if there is no such checkpoint.
    """
    records = gang.gather(read_record(backend, gang.rank))
    found = [record for record in records if record is not None]
    if len(found) < gang.world_size or len({record.save for record in found}) > 1:
        return None
    first = found[0]
    last = gang.ask_rank_zero(lambda: last_gang(backend, own_fences=1))
    if first.manifest.world_size != gang.world_size or first.fence != last.fence or first.manifest.step <= last.step:
        return None
    return first.manifest.model_copy(update={"parts": [record.part for record in found]})


def _load(
    gang: Gang, backend: Backend, state: TrainingState, subject: Subject | None, seed: int, manifest: Manifest
) -> dict[str, Any]:
    """Load one checkpoint into the state; return this rank's extra state.

    Raises:
        CorruptCheckpointError: The checkpoint is damaged; the state may be partly overwritten. Raised on all ranks.
    """
    _refuse_other_subject(manifest, subject, backend.url)
    has_weights_only = manifest.optimizer is None
    extra_states = None if has_weights_only else manifest.extra_states
    buffers = _ReadBuffers(gang, manifest, state.targets(_shared_records(manifest), manifest.optimizer, extra_states))
    _read_parts_together(gang, backend, manifest, buffers)
    buffers.broadcast()
    if state.scaler.is_enabled() and manifest.scaler:
        state.scaler.load_state_dict(decode(manifest.scaler))
    state.set_extra_states(manifest.extra_states)
    state.step, state.position = manifest.step, manifest.position
    return _restore_random(gang, manifest, buffers.random, seed)


def _read_manifest_together(gang: Gang, backend: Backend, entry: LogEntry) -> Manifest:
    return gang.ask_rank_zero(lambda: read_manifest(backend, entry))


def _refuse_other_subject(manifest: Manifest, subject: Subject | None, url: str) -> None:
    if subject is None:
        return
    problems = (
        ["it was not saved by this trainer"] if manifest.subject is None else manifest.subject.differences(subject)
    )
    if problems:
        where = f"{url}: the checkpoint for step {manifest.step} does not match this run"
        raise ConfigurationError([f"{where}: {problem}; undo the change, or name a new run" for problem in problems])


def _shared_records(manifest: Manifest) -> dict[str, TensorRecord]:
    """Return the records, by name, of the tensors that are the same on all ranks.

    Raises:
        CorruptCheckpointError: A tensor has an unknown type or an impossible size.
    """
    named = {name: record for part in manifest.parts for name, record in part.tensors.items()}
    for record in named.values():
        dtype_of(record)
    return {name: record for name, record in named.items() if not name.startswith(RANDOM)}


class _ReadBuffers:
    """The memory into which tensors are read: the state itself if type and layout match, or else temporary tensors.

    Attributes:
        random: this rank's RNG states, filled by reading its part.
    """

    def __init__(self, gang: Gang, manifest: Manifest, targets: dict[str, Tensor]) -> None:
        self._gang = gang
        self._manifest = manifest
        self._targets = targets
        self._read: dict[str, Tensor] = {}
        self.random: dict[str, Tensor] = {}

    def memory(self, number: int) -> dict[str, memoryview]:
        """Return the host memory for each tensor in a part."""
        memory = {}
        for name, record in self._manifest.parts[number].tensors.items():
            if name.startswith(RANDOM):
                if number != self._gang.rank:
                    continue
                tensor = self.random[name] = torch.empty(record.shape, dtype=dtype_of(record))
            else:
                tensor = self._targets[name].detach()
                if tensor.device.type != "cpu" or tensor.dtype != dtype_of(record) or not tensor.is_contiguous():
                    tensor = torch.empty(record.shape, dtype=dtype_of(record))
                self._read[name] = tensor
            memory[name] = bytes_of(tensor).numpy().data
        return memory

    def broadcast(self) -> None:
        """Copy every tensor into every rank's state, from the rank that read it."""
        for number, part in enumerate(self._manifest.parts):
            source = number % self._gang.world_size
            for name, record in part.tensors.items():
                if not name.startswith(RANDOM):
                    self._broadcast_tensor(name, record, source)

    def _broadcast_tensor(self, name: str, record: TensorRecord, source: int) -> None:
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


def _read_parts_together(gang: Gang, backend: Backend, manifest: Manifest, buffers: _ReadBuffers) -> None:
    """Read this rank's parts. An error on one rank is raised on all ranks."""
    failure: StoreError | None = None
    try:
        for number in _parts_of(gang, manifest):
            read_tensors(backend, manifest.parts[number], buffers.memory(number))
    except StoreError as error:
        failure = error
    gang.raise_together(failure)


def _parts_of(gang: Gang, manifest: Manifest) -> range:
    """Return the parts that this rank reads. If the world size is unchanged, this is the part that it wrote."""
    return range(gang.rank, len(manifest.parts), gang.world_size)


def _restore_random(gang: Gang, manifest: Manifest, random: dict[str, Tensor], seed: int) -> dict[str, Any]:
    """Restore this rank's RNG states; return its extra state."""
    prefix = _random_prefix(gang.rank)
    states = {name.removeprefix(prefix): state for name, state in random.items() if name.startswith(prefix)}
    if manifest.world_size != gang.world_size or not states:
        if gang.rank == 0 and states:
            logger.warning(
                "the checkpoint has RNG states for %d processes, not for %d; deriving new states from seed, "
                "rank and step; the global batches are unchanged",
                manifest.world_size,
                gang.world_size,
            )
        # Imported weights do not include RNG states.
        seed_random_state(seed, gang.rank, manifest.step)
        return {}
    restore_random_state(states, gang.device)
    document = states.get(RANK_EXTRA)
    return {} if document is None else decode(json.loads(document.numpy().tobytes()))
