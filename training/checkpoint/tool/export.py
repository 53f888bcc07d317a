"""Exports checkpoints to safetensors files, and imports them: only the weights, or a run's full state.

A file with the full state has the manifest in its metadata, so importing it recreates the same checkpoint. A file with
weights has only the tensors, under the model's names, as other programs expect. Importing it starts a new run.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from training.checkpoint import chunks
from training.checkpoint.chunks import ChunkSpan, Layout
from training.checkpoint.layout import bytes_of, dtype_of, lay_out, tensor_bytes
from training.checkpoint.manifest import (
    ChunkRecord,
    LogEntry,
    Manifest,
    PartRecord,
    Subject,
    chunk_key,
    refuse_other_version,
    tensor_records,
)
from training.checkpoint.resume import RANDOM
from training.checkpoint.selection import Selected
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.parallel import TRANSFER_THREADS, Report
from training.checkpoint.store import read_tensors
from training.checkpoint.tool.transfer import commit, open_log
from training.errors import ConfigurationError

MODEL = "model/"
_RANDOM_NAME = re.compile(re.escape(RANDOM) + r"rank-([0-9]+)/")
BATCH_BYTES = 256 * 1024 * 1024
"""Number of tensor bytes to read at a time; small enough to show progress."""
MANIFEST_KEY = "trainstack_manifest"
SUBJECT_KEY = "trainstack_subject"
SUPPORTED = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
        *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    }
)
"""Tensor types supported by the file format and its library.
Source: safetensors 0.8.0, safetensors/torch.py (2026-11)."""

Contents = Literal["weights", "state"]


def export_bytes(selected: Selected, contents: Contents) -> int:
    """Return the plain bytes that :func:`export_file` would write."""
    return sum(part.tensors[name].bytes for part, names in _wanted(selected.manifest, contents) for name in names)


def export_file(selected: Selected, path: Path, contents: Contents, overwrite: bool, report: Report) -> None:
    """Write a checkpoint's tensors to one safetensors file atomically. All tensors are in memory at the same time.

    Args:
        selected: the checkpoint to export.
        path: path to the new file.
        contents: whether to export the model's weights, or all tensors with the manifest.
        overwrite: True to replace an existing file.
        report: callback that receives the bytes read.

    Raises:
        ConfigurationError: The file exists or cannot be written, or the format does not support a tensor's type.
        CorruptCheckpointError: A chunk is missing or damaged.
    """
    if path.exists() and not overwrite:
        raise ConfigurationError([f"{path}: exists; choose another name, or use --overwrite"])
    _refuse_unsupported(selected, contents)
    tensors: dict[str, Tensor] = {}
    for part, names in _wanted(selected.manifest, contents):
        for batch in _batches(part, names):
            targets = {
                name: torch.empty(part.tensors[name].shape, dtype=dtype_of(part.tensors[name])) for name in batch
            }
            read_tensors(selected.backend, part, {name: bytes_of(each).numpy().data for name, each in targets.items()})
            tensors |= targets
            report(sum(part.tensors[name].bytes for name in batch))
    metadata = {"format": "pt"}
    if contents == "state":
        metadata[MANIFEST_KEY] = selected.manifest.model_dump_json(exclude={"parts"})
    else:
        if selected.manifest.subject is not None:
            metadata[SUBJECT_KEY] = selected.manifest.subject.model_dump_json()
        tensors = {name.removeprefix(MODEL): tensor for name, tensor in tensors.items()}
    write_file(tensors, metadata, path)


def import_file(path: Path, destination: Backend, report: Report) -> LogEntry:
    """Import a safetensors file as a store's newest checkpoint.

    Call :func:`training.checkpoint.tool.transfer.require_no_run` first, unless the call may end a run.

    Raises:
        ConfigurationError: The file is not a safetensors file, its metadata is damaged, or another version of this
            package wrote it.
        SupersededError: A trainer has taken over the store.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            manifest = _manifest_of(path, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, OSError) as error:
        raise ConfigurationError([f"{path}: cannot be read as safetensors ({error}); choose another file"]) from error
    if MANIFEST_KEY not in metadata:
        tensors = {f"{MODEL}{name}": tensor for name, tensor in tensors.items()}
    shares = _shares(path, tensors, manifest.world_size)
    log = open_log(destination)
    parts = [_store_part(share, destination, log.fence, report) for share in shares]
    written_bytes = sum(part.written_bytes for part in parts)
    return commit(manifest.model_copy(update={"parts": parts}), destination, log, str(path), written_bytes)


def file_bytes(path: Path) -> int:
    """Return the size of a file to import, in bytes.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    try:
        return path.stat().st_size
    except OSError as error:
        raise ConfigurationError([f"{path}: cannot be read ({error.strerror}); specify a safetensors file"]) from error


def _wanted(manifest: Manifest, contents: Contents) -> Iterator[tuple[PartRecord, list[str]]]:
    for part in manifest.parts:
        yield part, [name for name in part.tensors if contents == "state" or name.startswith(MODEL)]


def _batches(part: PartRecord, names: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size_bytes = 0
    for name in sorted(names, key=lambda name: part.tensors[name].offset_bytes):
        batch.append(name)
        size_bytes += part.tensors[name].bytes
        if size_bytes >= BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _refuse_unsupported(selected: Selected, contents: Contents) -> None:
    problems = [
        f"{selected.title}: safetensors does not support the type {part.tensors[name].dtype} of {name}; use pull"
        for part, names in _wanted(selected.manifest, contents)
        for name in names
        if dtype_of(part.tensors[name]) not in SUPPORTED
    ]
    if problems:
        raise ConfigurationError(problems)


def write_file(tensors: Mapping[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    """Write a safetensors file. It appears under its name only when it is complete and durable.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.unfinished-{os.getpid()}")
    try:
        temporary.touch()
        mode = stat.S_IMODE(temporary.stat().st_mode)
        save_file(dict(tensors), temporary, metadata)
        temporary.chmod(mode)  # save_file permits only the user to read the file, whatever the umask is
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise ConfigurationError(
            [f"{path}: cannot be written ({error}); free disk space, or choose another path"]
        ) from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _manifest_of(path: Path, metadata: Mapping[str, str]) -> Manifest:
    """Return the exported state's manifest or, for weights, the manifest for a run before its first step."""
    try:
        if MANIFEST_KEY in metadata:
            return Manifest.model_validate({**json.loads(metadata[MANIFEST_KEY]), "parts": []})
        subject = metadata.get(SUBJECT_KEY)
        return _new_run(None if subject is None else Subject.model_validate_json(subject))
    except (ValueError, TypeError) as error:
        if isinstance(error, ValidationError):
            refuse_other_version(error, str(path))
        raise ConfigurationError([f"{path}: its metadata is damaged ({error}); export it again"]) from error


def _new_run(subject: Subject | None) -> Manifest:
    return Manifest(
        subject=subject,
        step=0,
        position=0,
        generation=0,
        world_size=1,
        config={},
        config_digest="",
        scaler={},
        precision="",
        device_type="cpu",
        torch_version=str(torch.__version__),
        parts=[],
    )


def _shares(path: Path, tensors: Mapping[str, Tensor], world_size: int) -> list[dict[str, Tensor]]:
    """Return one share per rank. Each contains its rank's RNG states; the first also contains everything else."""
    shares: dict[int, dict[str, Tensor]] = {rank: {} for rank in range(world_size)}
    problems = []
    for name, tensor in tensors.items():
        match = _RANDOM_NAME.match(name)
        rank = int(match.group(1)) if match else 0
        if rank in shares:
            shares[rank][name] = tensor
        else:
            problems.append(f"{path}: has {name}, but its manifest has {world_size} processes; export it again")
    if problems:
        raise ConfigurationError(problems)
    return list(shares.values())


def _store_part(share: Mapping[str, Tensor], destination: Backend, fence: int, report: Report) -> PartRecord:
    layout = lay_out(share)
    flat = memoryview(_flatten(share, layout))

    def store(span: ChunkSpan) -> ChunkRecord:
        content = flat[span.offset_bytes : span.offset_bytes + span.bytes]
        stored = chunks.encode(content, span.element_bytes)
        key = chunk_key(fence, chunks.plain_hash(content))
        destination.put(key, stored)
        report(span.bytes)
        return ChunkRecord(key=key, bytes=span.bytes, stored_bytes=len(stored))

    with ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="checkpoint-import") as pool:
        records = list(pool.map(store, layout.spans))
    written = {record.key: record.stored_bytes for record in records}
    return PartRecord(tensors=tensor_records(layout), chunks=records, written_bytes=sum(written.values()))


def _flatten(share: Mapping[str, Tensor], layout: Layout) -> bytearray:
    flat = bytearray(layout.total_bytes)
    for name, tensor in share.items():
        begin = layout.tensors[name].offset_bytes
        flat[begin : begin + tensor_bytes(tensor)] = bytes_of(tensor.contiguous()).numpy().data
    return flat
