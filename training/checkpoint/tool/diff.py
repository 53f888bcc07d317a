"""Compares two checkpoints, reading only tensors that may differ."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from training.checkpoint.layout import bytes_of, dtype_of
from training.checkpoint.manifest import Manifest, PartRecord, TensorRecord
from training.checkpoint.selection import Selected
from training.checkpoint.storage.parallel import Report
from training.checkpoint.store import read_tensors

_NOT_COMPARED = frozenset({"parts", "schema_version"})


@dataclass(frozen=True)
class TensorChange:
    """The difference between two tensors with the same name, type and shape.

    Attributes:
        name: the tensors' name.
        largest: largest absolute difference between two elements; NaN if a difference is undefined.
        relative: the difference's Euclidean norm, divided by the first tensor's norm.
    """

    name: str
    largest: float
    relative: float


@dataclass
class Difference:
    """The differences between two checkpoints.

    Attributes:
        fields: first and second value of each differing manifest field, by dotted path.
        only_first: tensors missing from the second.
        only_second: tensors missing from the first.
        forms: first and second type and shape, as text, of each tensor whose type or shape differs.
        changes: tensors with the same type and shape, and different contents.
        equal: tensors with identical bits.
        shared_bytes: plain bytes in the chunks that both checkpoints share.
        bytes: plain bytes in the second checkpoint's chunks.
    """

    fields: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    only_first: list[str] = field(default_factory=list)
    only_second: list[str] = field(default_factory=list)
    forms: dict[str, tuple[str, str]] = field(default_factory=dict)
    changes: list[TensorChange] = field(default_factory=list)
    equal: list[str] = field(default_factory=list)
    shared_bytes: int = 0
    bytes: int = 0

    @property
    def is_empty(self) -> bool:
        """True if the checkpoints contain the same state. Other fields in their manifests may differ."""
        return not (self.only_first or self.only_second or self.forms or self.changes)


@dataclass(frozen=True)
class _Place:
    """A tensor and its part, which lists the chunks with the tensor's bytes."""

    part: PartRecord
    record: TensorRecord

    def contents(self) -> list[tuple[str, int]]:
        """Return the hash and relative offset of each chunk of the tensor. Equal results imply equal bytes."""
        begin, found = 0, []
        for chunk in self.part.chunks:
            end = begin + chunk.bytes
            if begin < self.record.offset_bytes + self.record.bytes and self.record.offset_bytes < end:
                found.append((chunk.blake3, self.record.offset_bytes - begin))
            begin = end
        return found


def compare(first: Selected, second: Selected, report: Report) -> Difference:
    """Compare two checkpoints, from the same store or from different stores.

    Args:
        first: first checkpoint.
        second: second checkpoint.
        report: callback that receives the bytes read from both.

    Raises:
        CorruptCheckpointError: A required chunk is missing or damaged.
    """
    ours, theirs = _places(first.manifest), _places(second.manifest)
    chunks = {record.blake3: record.bytes for record in second.manifest.chunks}
    shared = {record.blake3 for record in first.manifest.chunks} & chunks.keys()
    found = Difference(
        fields=_fields(first.manifest, second.manifest),
        only_first=sorted(ours.keys() - theirs.keys()),
        only_second=sorted(theirs.keys() - ours.keys()),
        shared_bytes=sum(chunks[name] for name in shared),
        bytes=sum(chunks.values()),
    )
    for name in sorted(ours.keys() & theirs.keys()):
        mine, other = ours[name], theirs[name]
        if (mine.record.dtype, mine.record.shape) != (other.record.dtype, other.record.shape):
            found.forms[name] = (_form(mine.record), _form(other.record))
        elif mine.contents() == other.contents():
            found.equal.append(name)
        else:
            change = _change(name, _read(first, mine, name), _read(second, other, name))
            report(mine.record.bytes + other.record.bytes)
            if change is None:
                found.equal.append(name)
            else:
                found.changes.append(change)
    return found


def bytes_to_compare(first: Selected, second: Selected) -> int:
    """Return the maximum number of tensor bytes that :func:`compare` reads."""
    ours, theirs = _places(first.manifest), _places(second.manifest)
    return sum(
        ours[name].record.bytes + theirs[name].record.bytes
        for name in ours.keys() & theirs.keys()
        if ours[name].record.shape == theirs[name].record.shape and ours[name].contents() != theirs[name].contents()
    )


def _places(manifest: Manifest) -> dict[str, _Place]:
    return {name: _Place(part, record) for part in manifest.parts for name, record in part.tensors.items()}


def _form(record: TensorRecord) -> str:
    return f"{record.dtype} {record.shape}"


def _read(selected: Selected, place: _Place, name: str) -> Tensor:
    tensor = torch.empty(place.record.shape, dtype=dtype_of(place.record))
    read_tensors(selected.backend, place.part, {name: bytes_of(tensor).numpy().data})
    return tensor


def _change(name: str, mine: Tensor, other: Tensor) -> TensorChange | None:
    if torch.equal(bytes_of(mine), bytes_of(other)):
        return None
    wide = torch.complex128 if mine.is_complex() else torch.float64
    before, after = mine.to(wide), other.to(wide)
    difference = (after - before).abs()
    norm = before.abs().square().sum().sqrt().item()
    moved = difference.square().sum().sqrt().item()
    return TensorChange(name, difference.max().item(), moved / norm if norm else math.inf)


def _fields(first: Manifest, second: Manifest) -> dict[str, tuple[Any, Any]]:
    ours, theirs = (_flat(manifest.model_dump(mode="json", exclude=set(_NOT_COMPARED))) for manifest in (first, second))
    return {
        path: (ours.get(path), theirs.get(path))
        for path in sorted(ours.keys() | theirs.keys())
        if ours.get(path) != theirs.get(path)
    }


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {path: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{path}.{key}" if path else key)
    return flat
