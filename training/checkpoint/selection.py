"""Finds the checkpoint for an address."""

from __future__ import annotations

from dataclasses import dataclass

from training.checkpoint.address import ENTRY_PREFIX, NEWEST, Address
from training.checkpoint.log import PREFIX
from training.checkpoint.manifest import LogEntry, Manifest
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.store import Listed, list_checkpoints
from training.checkpoint.tags import read_tag, read_tags
from training.errors import NotFoundError

CHECKPOINTS = "checkpoints"
"""Name of the store in a run's folder, as the supervisor passes it to the trainer."""


@dataclass(frozen=True)
class Selected:
    """A complete checkpoint: all chunks exist, but their contents have not been read."""

    backend: Backend
    entry: LogEntry
    manifest: Manifest

    @property
    def title(self) -> str:
        """The checkpoint's name in messages."""
        return f"{self.backend.url}#{ENTRY_PREFIX}{self.entry.sequence} (step {self.entry.step})"


def open_existing(url: str) -> Backend:
    """Open a store. If ``url`` is a run's folder, open the store ``checkpoints`` in it.

    Raises:
        ConfigurationError: The address is invalid.
    """
    backend = open_backend(url)
    below = f"{CHECKPOINTS}/{PREFIX}"
    if "," in url or backend.keys(PREFIX, 1) or not backend.keys(below, 1):
        return backend
    return open_backend(f"{url.rstrip('/')}/{CHECKPOINTS}")


def select(text: str) -> Selected:
    """Open an address's store, and find the checkpoint.

    Raises:
        ConfigurationError: The address is invalid.
        NotFoundError: The checkpoint does not exist or is incomplete.
    """
    address = Address.parse(text)
    backend = open_existing(address.url)
    sequence = _sequence(backend, address.selector)
    damaged = None
    for listed in list_checkpoints(backend):
        if not _matches(listed.entry, address.selector, sequence):
            continue
        if listed.is_complete:
            assert listed.manifest is not None, "a complete checkpoint has one"
            return Selected(backend, listed.entry, listed.manifest)
        damaged = damaged or listed
    if damaged is not None:
        raise NotFoundError(f"{text}: {_damage(damaged)}; `checkpoint ls` lists the complete ones")
    raise NotFoundError(f"{text}: no such checkpoint; `checkpoint ls {address.url}` lists them")


def _sequence(backend: Backend, selector: str) -> int | None:
    """Return the log entry that a selector names by number or tag; None for a step or the newest checkpoint."""
    if selector.startswith(ENTRY_PREFIX):
        return int(selector.removeprefix(ENTRY_PREFIX))
    if selector == NEWEST or selector.isdecimal():
        return None
    tag = read_tag(backend, selector)
    if tag is not None:
        return tag.sequence
    existing = ", ".join(tag.name for tag in read_tags(backend)) or "none"
    raise NotFoundError(f"{backend.url}: no tag {selector!r}; existing tags: {existing}")


def _matches(entry: LogEntry, selector: str, sequence: int | None) -> bool:
    if sequence is not None:
        return entry.sequence == sequence
    return selector == NEWEST or entry.step == int(selector)


def _damage(listed: Listed) -> str:
    name = f"the checkpoint for step {listed.entry.step} (log entry {listed.entry.sequence})"
    if listed.manifest is None:
        return f"{name} was collected or lost: its manifest is missing"
    return f"{name} is incomplete: {len(listed.missing)} chunks are missing, the first is {listed.missing[0]}"
