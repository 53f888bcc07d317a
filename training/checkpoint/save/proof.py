"""Before a new run's first step, verifies that its checkpoints can be loaded: writes one and reads it back.

By default, only a full manifest and one chunk of tensor bytes are written. A full verification takes as long as a save
plus a resume, and needs host memory for a copy of the model. `python -m training checkpoint verify` verifies stored
checkpoints.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import torch
from torch import Tensor

from training.checkpoint import chunks
from training.checkpoint.chunks import CHUNK_BYTES
from training.checkpoint.layout import bytes_of, dtype_of, lay_out, tensor_bytes, views_of
from training.checkpoint.manifest import ChunkRecord, LogEntry, Manifest, PartRecord, chunk_key, tensor_records
from training.checkpoint.state.model import model_targets
from training.checkpoint.state.training_state import Captured, TrainingState
from training.checkpoint.state.values import encode_mapping
from training.checkpoint.storage.backend import Backend, tiers_of
from training.checkpoint.storage.parallel import TRANSFER_THREADS, results_of
from training.checkpoint.store import put_manifest, read_chunk, read_manifest, read_tensors
from training.errors import ConfigurationError, CorruptCheckpointError, StoreError

logger = logging.getLogger(__name__)

Verification = Literal["part", "full"]


def prove_loadable(
    backend: Backend, fence: int, state: TrainingState, *, compress: bool, verification: Verification = "part"
) -> None:
    """Write a checkpoint or a part of one to the durable store, read it back, compare it, and delete it.

    The optimizer usually has no state yet.

    Args:
        backend: the checkpoint store.
        fence: sequence number of the gang's fence, which names the folder of the chunks.
        state: the state to write.
        compress: True to compress chunks where it saves space.
        verification: ``part``: a manifest and one chunk; ``full``: all bytes.

    Raises:
        ConfigurationError: The structure read back differs from the structure of the state.
        StoreError: The store cannot be written or read, or returns different bytes.
    """
    began = time.monotonic()
    store = tiers_of(backend)[-1]
    captured = state.capture()
    tensors = captured.shared | captured.buffers
    if not any(map(tensor_bytes, tensors.values())):
        return  # nothing to save
    stored = _Stored(store, fence, compress)
    try:
        put = stored.put_all if verification == "full" else stored.put_one
        manifest = _manifest(state, captured, put(tensors))
        read = stored.exchange(manifest)
        if verification == "full":
            stored.compare(read, tensors)
    except CorruptCheckpointError as error:
        raise StoreError(
            f"{store.url}: the data read back differs from the data written ({error}); use another store"
        ) from error
    finally:
        _delete(store, stored.keys)
    _, problems = model_targets(state.model, {n: r for n, r in read.parts[0].tensors.items() if n.startswith("model/")})
    if read != manifest:
        problems.append("checkpoint: the structure read back differs from the structure written")
    if problems:
        raise ConfigurationError([f"{problem}; this state cannot be saved and loaded" for problem in problems])
    logger.info(
        "%s was written and read back: %d tensors, %d bytes, %.3f s",
        "a checkpoint" if verification == "full" else "a part of a checkpoint",
        len(tensors),
        stored.bytes,
        time.monotonic() - began,
    )


class _Stored:
    """The objects written by the proof.

    Attributes:
        keys: their keys.
        bytes: their plain bytes.
    """

    def __init__(self, store: Backend, fence: int, compress: bool) -> None:
        self._store, self._fence, self._compress = store, fence, compress
        self._first: ChunkRecord | None = None
        self.keys: list[str] = []
        self.bytes = 0

    def put_one(self, tensors: Mapping[str, Tensor]) -> PartRecord:
        """Write one chunk, and return a checkpoint part in which every chunk reference points to it."""
        layout = lay_out(tensors)
        record = self._first = self._put(_one_chunk(tensors), 1)
        covering = [record.model_copy(update={"bytes": span.bytes}) for span in layout.spans]
        return PartRecord(tensors=tensor_records(layout), chunks=covering, written_bytes=0)

    def put_all(self, tensors: Mapping[str, Tensor]) -> PartRecord:
        """Write all chunks; return the part."""
        layout = lay_out(tensors)
        flat = torch.zeros(layout.total_bytes, dtype=torch.uint8)
        with torch.no_grad():
            for name, view in views_of(flat, layout.tensors).items():
                view.copy_(tensors[name])
        plain = flat.numpy().data
        with ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="checkpoint-proof") as pool:
            pending = [
                pool.submit(self._put, plain[span.offset_bytes : span.offset_bytes + span.bytes], span.element_bytes)
                for span in layout.spans
            ]
            records = results_of(pool, pending)
        return PartRecord(tensors=tensor_records(layout), chunks=records, written_bytes=0)

    def _put(self, content: memoryview, element_bytes: int) -> ChunkRecord:
        key = chunk_key(self._fence, chunks.plain_hash(content))
        self.keys.append(key)
        stored = chunks.encode(content, element_bytes, self._compress)
        self._store.put(key, stored)
        self.bytes += len(content)
        return ChunkRecord(key=key, bytes=len(content), stored_bytes=len(stored))

    def exchange(self, manifest: Manifest) -> Manifest:
        """Write the manifest, and return it as read back. Compare the chunk of :meth:`put_one` with its hash."""
        reference = put_manifest(self._store, self._fence, manifest)
        self.keys.append(reference.key)
        self.bytes += reference.bytes
        if self._first is not None:
            read_chunk(self._store, self._first)
        entry = LogEntry(
            kind="checkpoint", sequence=0, generation=0, writer="", unix_seconds=0, step=0, manifest=reference
        )
        return read_manifest(self._store, entry)

    def compare(self, manifest: Manifest, tensors: Mapping[str, Tensor]) -> None:
        """Load the tensors as a resumed run does, and compare them with the state.

        Raises:
            CorruptCheckpointError: The bytes of a tensor differ.
        """
        part = manifest.parts[0]
        read = {name: torch.empty(record.shape, dtype=dtype_of(record)) for name, record in part.tensors.items()}
        read_tensors(self._store, part, {name: bytes_of(tensor).numpy().data for name, tensor in read.items()})
        for name, tensor in read.items():
            if not torch.equal(bytes_of(tensor), bytes_of(tensors[name].detach().cpu().contiguous())):
                raise CorruptCheckpointError(f"the bytes of {name} differ")


def _one_chunk(tensors: Mapping[str, Tensor]) -> memoryview:
    """Return at most one chunk from the beginning of the largest tensor."""
    tensor = max(tensors.values(), key=tensor_bytes).detach().reshape(-1)
    part = tensor[: CHUNK_BYTES // tensor.element_size()].cpu().contiguous()
    return bytes_of(part).numpy().data


def _manifest(state: TrainingState, captured: Captured, part: PartRecord) -> Manifest:
    return Manifest(
        step=0,
        position=0,
        generation=0,
        world_size=1,
        config={},
        config_digest="",
        scaler=encode_mapping(state.scaler.state_dict(), "scaler"),
        precision="",
        device_type="",
        torch_version=str(torch.__version__),
        optimizer=captured.optimizer,
        extra_states=captured.extra_states,
        parts=[part],
    )


def _delete(store: Backend, keys: list[str]) -> None:
    try:
        store.delete(keys)
    except StoreError as error:
        logger.warning("cannot delete the chunks written to test the store: %s", error)
