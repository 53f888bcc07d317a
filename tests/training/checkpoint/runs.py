"""Runs without a trainer: states that change from step to step, saved by real writers and compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from training.checkpoint.layout import bytes_of, views_of
from training.checkpoint.log import LogWriter
from training.checkpoint.manifest import LogEntry, Manifest, ValidationRecord
from training.checkpoint.save.rank_save import SavePlan, chunks_by_hash
from training.checkpoint.save.writer import CheckpointWriter
from training.checkpoint.storage.backend import Backend
from training.checkpoint.store import checkpoint_entries, list_checkpoints, read_manifest, read_part
from training.errors import AlreadyExistsError, NotFoundError


def manifest(step: int, world_size: int = 1, validation_loss: float | None = None) -> Manifest:
    return Manifest(
        step=step,
        position=step * 8,
        generation=1,
        world_size=world_size,
        config={},
        config_digest="c",
        scaler={},
        precision="fp32",
        device_type="cpu",
        torch_version="2",
        validation=None if validation_loss is None else ValidationRecord(step=step, loss=validation_loss),
        parts=[],
    )


def state(step: int) -> dict[str, torch.Tensor]:
    """Return a frozen tensor, a changing one, and small ones; ``small_chunks`` gives the first two their own chunks."""
    generator = torch.Generator().manual_seed(step)
    return {
        "model/frozen": torch.arange(2100, dtype=torch.float32),
        "model/large": torch.randn(50, 45, generator=generator),
        "model/small": torch.randn(7, generator=generator),
        "optimizer/step": torch.tensor(float(step)),
    }


def start(backend: Backend, generation: int = 1, **options: Any) -> CheckpointWriter:
    """Start a writer as a gang does: append a fence, and reuse the chunks of the newest complete checkpoint."""
    log = LogWriter(backend, generation)
    newest = next((listed for listed in list_checkpoints(backend) if listed.is_complete), None)
    reusable = chunks_by_hash(newest.manifest) if newest and newest.manifest else {}
    defaults = {"rank": 0, "world_size": 1, "fence": log.fence, "reusable": reusable, "threads": 1}
    plan = SavePlan(**{**defaults, **options})
    return CheckpointWriter(backend, plan, log)


def save(
    writer: CheckpointWriter,
    step: int,
    tensors: dict[str, torch.Tensor] | None = None,
    validation_loss: float | None = None,
) -> None:
    content = state(step) if tensors is None else tensors
    writer.begin(content, {}, manifest(step, validation_loss=validation_loss), "interval")
    writer.wait()
    if writer.error is not None:
        raise writer.error


def load(backend: Backend, entry: LogEntry) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for part in read_manifest(backend, entry).parts:
        flat = torch.frombuffer(read_part(backend, part) or bytearray(1), dtype=torch.uint8)
        found |= views_of(flat, part.tensors)
    return found


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two tensors have the same type, shape and bits, including NaNs."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(bytes_of(one.contiguous()), bytes_of(other.contiguous()))
    )


def assert_holds(backend: Backend, entry: LogEntry) -> None:
    assert entry.step is not None
    loaded, wanted = load(backend, entry), state(entry.step)
    assert loaded.keys() == wanted.keys()
    assert all(same(loaded[name], wanted[name]) for name in wanted)


def complete_steps(backend: Backend) -> list[int]:
    return [listed.entry.step or 0 for listed in list_checkpoints(backend) if listed.is_complete]


def newest(backend: Backend) -> LogEntry:
    return next(checkpoint_entries(backend))


class MemoryBackend:
    """A strongly consistent store in memory."""

    url = "memory"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, key: str, content: bytes) -> None:
        self.objects[key] = bytes(content)

    def create(self, key: str, content: bytes) -> None:
        if self.objects.setdefault(key, content) is not content:
            raise AlreadyExistsError(f"{key}: already exists")

    def get(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError as error:
            raise NotFoundError(f"{key}: does not exist") from error

    def keys(self, prefix: str, limit: int | None = None) -> list[str]:
        return sorted(key for key in list(self.objects) if key.startswith(prefix))[:limit]

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    def copy(self) -> MemoryBackend:
        other = MemoryBackend()
        other.objects = dict(self.objects)
        return other


class Hooked:
    """A backend that calls ``before`` with number, name and key before each of its operations."""

    def __init__(self, inner: Backend, before: Callable[[int, str, str], None]) -> None:
        self.url = inner.url
        self._inner = inner
        self._before = before
        self.operations = 0

    def _note(self, name: str, key: str) -> None:
        self.operations += 1
        self._before(self.operations, name, key)

    def put(self, key: str, content: bytes) -> None:
        self._note("put", key)
        self._inner.put(key, content)

    def create(self, key: str, content: bytes) -> None:
        self._note("create", key)
        self._inner.create(key, content)

    def get(self, key: str) -> bytes:
        self._note("get", key)
        return self._inner.get(key)

    def keys(self, prefix: str, limit: int | None = None) -> list[str]:
        self._note("keys", prefix)
        return self._inner.keys(prefix, limit)

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self._note("delete", key)
            self._inner.delete([key])
