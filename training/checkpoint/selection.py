"""Which checkpoint of which store a person means: ``URL`` for the newest whole one, or ``URL#CHECKPOINT``."""

from __future__ import annotations

from dataclasses import dataclass

from training.checkpoint.backend import Backend, open_backend
from training.checkpoint.manifest import LogEntry, Manifest
from training.checkpoint.store import Listed, list_checkpoints
from training.checkpoint.tags import TAG_NAME, Tag, read_tags
from training.checkpoint.tool_arguments import GRAMMAR
from training.errors import ConfigurationError, NotFoundError

NEWEST = "newest"
ENTRY_PREFIX = "entry:"


@dataclass(frozen=True)
class Address:
    """A store, and what was said of the checkpoint."""

    url: str
    selector: str = NEWEST

    @classmethod
    def parse(cls, text: str) -> Address:
        """Split ``URL#CHECKPOINT``.

        Raises:
            ConfigurationError: the part after # names no checkpoint.
        """
        url, mark, selector = text.rpartition("#")
        if not mark:
            return cls(text)
        number = selector.removeprefix(ENTRY_PREFIX)
        if not url or not (number.isdecimal() or TAG_NAME.fullmatch(selector)):
            raise ConfigurationError([f"{text}: names no checkpoint after the last #; {GRAMMAR}"])
        return cls(url, selector)


@dataclass(frozen=True)
class Selected:
    """A whole checkpoint: everything is there; its contents have not been read."""

    backend: Backend
    entry: LogEntry
    manifest: Manifest

    @property
    def title(self) -> str:
        """What it is called in messages."""
        return f"{self.backend.url}#{ENTRY_PREFIX}{self.entry.sequence} (step {self.entry.step})"


def select(text: str) -> Selected:
    """Open the store of an address and find its checkpoint.

    Raises:
        ConfigurationError: it is not an address.
        NotFoundError: there is no such checkpoint, or it is not whole.
    """
    address = Address.parse(text)
    backend = open_backend(address.url)
    sequence = _tagged_sequence(backend, address.selector)
    damaged = None
    for listed in list_checkpoints(backend):
        if not _matches(listed.entry, address.selector, sequence):
            continue
        if listed.is_whole:
            assert listed.manifest is not None, "a whole checkpoint has one"
            return Selected(backend, listed.entry, listed.manifest)
        damaged = damaged or listed
    if damaged is not None:
        raise NotFoundError(f"{text}: {_damage(damaged)}; `checkpoint ls` shows those that are whole")
    raise NotFoundError(
        f"{text}: there is no such checkpoint; `checkpoint ls {address.url}` shows those that there are"
    )


def _tagged_sequence(backend: Backend, selector: str) -> int | None:
    """Log entry that a selector names by place or tag."""
    if selector.startswith(ENTRY_PREFIX):
        return int(selector.removeprefix(ENTRY_PREFIX))
    if selector == NEWEST or selector.isdecimal():
        return None
    tags: list[Tag] = read_tags(backend)
    for tag in tags:
        if tag.name == selector:
            return tag.sequence
    there = ", ".join(tag.name for tag in tags) or "none"
    raise NotFoundError(f"{backend.url}: has no tag {selector!r}; tags there: {there}")


def _matches(entry: LogEntry, selector: str, sequence: int | None) -> bool:
    if sequence is not None:
        return entry.sequence == sequence
    return selector == NEWEST or entry.step == int(selector)


def _damage(listed: Listed) -> str:
    what = f"the checkpoint of step {listed.entry.step} (log entry {listed.entry.sequence})"
    if listed.manifest is None:
        return f"{what} was collected or lost: its manifest is not there"
    return f"{what} is not whole: {len(listed.missing)} chunks are missing, the first is {listed.missing[0]}"
