"""What differs between two checkpoints; only tensors that may differ are read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from training.checkpoint.inspection import Report
from training.checkpoint.layout import bytes_of, dtype_of
from training.checkpoint.manifest import Manifest, PartRecord, TensorRecord
from training.checkpoint.reading import read_tensors
from training.checkpoint.selection import Selected

_NOT_COMPARED = frozenset({"parts", "schema_version"})


@dataclass(frozen=True)
class TensorChange:
    """Two tensors of one name, form and other contents.

    Attributes:
        name: of the tensor.
        largest: largest difference of two elements, by absolute value; NaN if some of them have none.
        relative: Euclidean norm of the difference over that of the first tensor.
    """

    name: str
    largest: float
    relative: float


@dataclass
class Difference:
    """What differs.

    Attributes:
        fields: of the manifests, flattened to dotted paths: first and second value.
        only_first: tensors that the second does not have.
        only_second: tensors that the first does not have.
        forms: tensors of another type or shape: both in words.
        changes: tensors of the same form and other contents.
        equal: tensors that are the same, bit for bit.
        shared_bytes: plain bytes of the chunks that both have.
        bytes: plain bytes of the chunks of the second.
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
        """Whether the checkpoints hold the same state; what their manifests say of it may differ."""
        return not (self.only_first or self.only_second or self.forms or self.changes)


@dataclass(frozen=True)
class _Place:
    """A tensor, and what its bytes are made of."""

    part: PartRecord
    record: TensorRecord

    def contents(self) -> list[tuple[str, int]]:
        """Hashes of the chunks that hold it, and its place in the first: equal ones mean equal bytes."""
        begin, found = 0, []
        for chunk in self.part.chunks:
            end = begin + chunk.bytes
            if begin < self.record.offset_bytes + self.record.bytes and self.record.offset_bytes < end:
                found.append((chunk.blake3, self.record.offset_bytes - begin))
            begin = end
        return found


def compare(first: Selected, second: Selected, report: Report) -> Difference:
    """Compare two checkpoints, of the same store or of two.

    Args:
        first: a checkpoint.
        second: another.
        report: told of the bytes read, of both.

    Raises:
        CorruptCheckpointError: a chunk that has to be read is missing or damaged.
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
    """Most bytes of tensors that :func:`compare` reads."""
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
