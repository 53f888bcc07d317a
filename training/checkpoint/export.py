"""Checkpoints as safetensors files, and back; weights alone, or the whole state of a run.

A file of a whole state carries the manifest in its metadata, so that importing it gives the same checkpoint again. One
of weights is what other programs expect: the model's own names, nothing else; imported, it is a run's beginning.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from training.checkpoint import chunks
from training.checkpoint.backend import Backend
from training.checkpoint.chunks import ChunkSpan
from training.checkpoint.inspection import Report
from training.checkpoint.layout import Layout, bytes_of, dtype_of, lay_out, tensor_bytes
from training.checkpoint.manifest import ChunkRecord, LogEntry, Manifest, PartRecord, Subject
from training.checkpoint.reading import TRANSFER_THREADS, read_tensors
from training.checkpoint.resume import RANDOM
from training.checkpoint.selection import Selected
from training.checkpoint.store import CHUNK_PREFIX
from training.checkpoint.transfer import commit, open_log
from training.errors import ConfigurationError

MODEL = "model/"
_RANDOM_NAME = re.compile(re.escape(RANDOM) + r"rank-([0-9]+)/")
BATCH_BYTES = 256 * 1024 * 1024
"""Tensors of about this much are read at a time: often enough to show progress."""
MANIFEST_KEY = "trainstack_manifest"
SUBJECT_KEY = "trainstack_subject"
SUPPORTED = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
        *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    }
)
"""Types that the file format and its library can hold, and give back.
Source: safetensors 0.8.0, safetensors/torch.py (2026-11)."""

Contents = Literal["weights", "state"]


def export_bytes(selected: Selected, contents: Contents) -> int:
    """Plain bytes of what :func:`export_file` would write."""
    return sum(part.tensors[name].bytes for part, names in _wanted(selected.manifest, contents) for name in names)


def export_file(selected: Selected, path: Path, contents: Contents, overwrite: bool, report: Report) -> None:
    """Write a checkpoint's tensors to one safetensors file, whole or not at all; they are in memory meanwhile.

    Args:
        selected: the checkpoint.
        path: of the file.
        contents: the model's weights, or all tensors with the manifest.
        overwrite: whether a file may be there already.
        report: told of the bytes read.

    Raises:
        ConfigurationError: the file exists, cannot be written, or the format lacks the type of a tensor.
        CorruptCheckpointError: a chunk is missing or damaged.
    """
    if path.exists() and not overwrite:
        raise ConfigurationError([f"{path}: exists; give another name, or --overwrite"])
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
    _write_whole(tensors, metadata, path)


def import_file(path: Path, destination: Backend, report: Report) -> LogEntry:
    """Make a safetensors file the newest checkpoint of a store.

    Call :func:`training.checkpoint.transfer.require_no_run` before, unless a run may be ended.

    Raises:
        ConfigurationError: it is not a safetensors file, or its metadata is not this package's.
        SupersededError: a trainer has taken the store over.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            manifest = _manifest_of(path, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no mapping)
    except (SafetensorError, OSError) as error:
        raise ConfigurationError([f"{path}: cannot be read as safetensors ({error}); give another file"]) from error
    if MANIFEST_KEY not in metadata:
        tensors = {f"{MODEL}{name}": tensor for name, tensor in tensors.items()}
    shares = _shares(path, tensors, manifest.world_size)
    log = open_log(destination)
    parts = [_store_part(share, destination, log.epoch, report) for share in shares]
    written_bytes = sum(part.written_bytes for part in parts)
    return commit(manifest.model_copy(update={"parts": parts}), destination, log, str(path), written_bytes)


def file_bytes(path: Path) -> int:
    """Bytes of a file to import.

    Raises:
        ConfigurationError: it is not there.
    """
    try:
        return path.stat().st_size
    except OSError as error:
        raise ConfigurationError([f"{path}: cannot be read ({error.strerror}); give a safetensors file"]) from error


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
        f"{selected.title}: {name} is of type {part.tensors[name].dtype}, which safetensors files cannot hold; use pull"
        for part, names in _wanted(selected.manifest, contents)
        for name in names
        if dtype_of(part.tensors[name]) not in SUPPORTED
    ]
    if problems:
        raise ConfigurationError(problems)


def _write_whole(tensors: Mapping[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    temporary = path.with_name(f".{path.name}.unfinished-{os.getpid()}")
    try:
        save_file(dict(tensors), temporary, metadata)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise ConfigurationError([f"{path}: cannot be written ({error}); free space, or give another place"]) from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _manifest_of(path: Path, metadata: Mapping[str, str]) -> Manifest:
    """The manifest of an exported state; of weights, one of a run before its first step."""
    try:
        if MANIFEST_KEY in metadata:
            return Manifest.model_validate({**json.loads(metadata[MANIFEST_KEY]), "parts": []})
        subject = metadata.get(SUBJECT_KEY)
        return _beginning(None if subject is None else Subject.model_validate_json(subject))
    except (ValueError, TypeError) as error:
        raise ConfigurationError([f"{path}: its metadata is damaged ({error}); export it again"]) from error


def _beginning(subject: Subject | None) -> Manifest:
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
    """One part a rank: each rank reads its random states from its own; everything else is in the first."""
    shares: dict[int, dict[str, Tensor]] = {rank: {} for rank in range(world_size)}
    problems = []
    for name, tensor in tensors.items():
        match = _RANDOM_NAME.match(name)
        rank = int(match.group(1)) if match else 0
        if rank in shares:
            shares[rank][name] = tensor
        else:
            problems.append(f"{path}: has {name}, but its manifest is of {world_size} processes; export it again")
    if problems:
        raise ConfigurationError(problems)
    return list(shares.values())


def _store_part(share: Mapping[str, Tensor], destination: Backend, epoch: int, report: Report) -> PartRecord:
    layout = lay_out(share)
    flat = memoryview(_flatten(share, layout))

    def store(span: ChunkSpan) -> ChunkRecord:
        content = flat[span.offset_bytes : span.offset_bytes + span.bytes]
        stored = chunks.encode(content, span.element_bytes)
        key = f"{CHUNK_PREFIX}{epoch:08d}/{chunks.plain_hash(content)}"
        destination.put(key, stored)
        report(span.bytes)
        return ChunkRecord(key=key, bytes=span.bytes, stored_bytes=len(stored))

    with ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="checkpoint-import") as pool:
        records = list(pool.map(store, layout.spans))
    written = {record.key: record.stored_bytes for record in records}
    return PartRecord(tensors=layout.tensors, chunks=records, written_bytes=sum(written.values()))


def _flatten(share: Mapping[str, Tensor], layout: Layout) -> bytearray:
    flat = bytearray(layout.total_bytes)
    for name, tensor in share.items():
        begin = layout.tensors[name].offset_bytes
        flat[begin : begin + tensor_bytes(tensor)] = bytes_of(tensor.contiguous()).numpy().data
    return flat
