"""Determines which deployment file keys caused a change by matching edited keys to changed properties."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from stacks.changes.config_keys import EXCLUSIVE_KEYS_BY_PATH, IDENTITY_KEYS, KEYS_BY_PATH
from stacks.changes.templates.template_set import PropertyPath
from stacks.changes.templates.values import RUN_DOCUMENT
from stacks.changes.updates.resources import Key, ResourceChange
from stacks.config import TRAINING_STACK

NO_KEY = "not caused by a key in the file"
CODE_PATHS = ("*/Code/S3*", "*/node document/bundle/*", "*/run document/code/*", "*/UserData/shim")
"""Paths that code changes also affect. A key is reported as their cause only if it is known to differ."""
MAX_GUESSES = 3
SLOT_STACKS = f"{TRAINING_STACK}-"
"""Start of the construct ids of all slots' stacks except the first one's."""


@dataclass(frozen=True)
class Edit:
    """One key that differs. `source` is the file that contains the key, unless that is the deployment file."""

    key: str
    before: Any
    after: Any
    source: str | None = None

    def __str__(self) -> str:
        """Return the key, with its file if that is not the deployment file."""
        return self.key if self.source is None else f"{self.key} ({self.source})"


def edits(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterator[Edit]:
    """Yield the keys that differ between two files with defaults applied. An added or removed section is one key."""
    for name in dict.fromkeys((*before, *after)):
        key, was, becomes = f"{prefix}{name}", before.get(name), after.get(name)
        if was == becomes:
            continue
        if isinstance(was, Mapping) and isinstance(becomes, Mapping):
            yield from edits(was, becomes, f"{key}.")
        else:
            yield Edit(key, was, becomes)


class Causes:
    """Maps each changed property to the keys that caused it.

    If `changed` is None because the other side's file is not available, the causes are all keys that affect the
    property.
    """

    def __init__(self, changes: Iterable[ResourceChange], changed: Sequence[Edit] | None) -> None:
        self._changes = {change.key: change for change in changes}
        self._changed = None if changed is None else [edit.key for edit in changed]

    @property
    def are_known(self) -> bool:
        """Whether both files are available. Otherwise, the keys are only possible causes."""
        return self._changed is not None

    def of(self, key: Key, path: PropertyPath = ()) -> tuple[str, ...]:
        """Return the keys that caused a property to change, or an empty result if no key in the file did."""
        return tuple(dict.fromkeys(self._of(key, path, frozenset())))

    def of_change(self, change: ResourceChange) -> tuple[str, ...]:
        """Return the keys that caused a resource's differences."""
        if not change.differences:
            return self.of(change.key)
        return tuple(dict.fromkeys(one for each in change.differences for one in self.of(change.key, each.path)))

    def text(self, keys: Sequence[str]) -> str:
        """Return the text for a list of keys."""
        if not keys:
            return NO_KEY
        if self.are_known:
            return ", ".join(keys)
        return f"possibly {', '.join(keys[:MAX_GUESSES])}" + (" or others" if len(keys) > MAX_GUESSES else "")

    def _of(self, key: Key, path: PropertyPath, seen: frozenset[tuple[Key, PropertyPath]]) -> Iterator[str]:
        if (key, path) in seen:
            return
        seen = seen | {(key, path)}
        change = self._changes.get(key)
        differing = [] if change is None else [one for one in change.differences if _overlap(one.path, path)]
        for one in differing:
            if one.via is not None:
                source = self._changes.get((one.via.stack, one.via.logical_id))
                for each in source.differences if source is not None else ():
                    if source is not None:
                        yield from self._of(source.key, each.path, seen)
            else:
                yield from self._keys(key, one.path)
        if not differing or (change is not None and change.action in ("added", "removed")):
            yield from self._keys(key, path)

    def _keys(self, key: Key, path: PropertyPath) -> Iterator[str]:
        candidates = list(_keys_of(key, path))
        if self._changed is None:
            if not any(fnmatchcase("/".join((*key, *path)), pattern) for pattern in CODE_PATHS):
                yield from (one for one in candidates if one not in IDENTITY_KEYS)
            return
        yield from (one for one in self._changed if any(_is_within(one, each) for each in candidates))


def _keys_of(key: Key, path: PropertyPath) -> Iterator[str]:
    """Yield the keys that affect a property."""
    if key[0].startswith(SLOT_STACKS):
        yield "capacity.slots"
        key = (TRAINING_STACK, key[1])
    place = "/".join((*key, *path))
    if RUN_DOCUMENT in path and path[path.index(RUN_DOCUMENT) + 1 :][:1] == ("training",):
        yield ".".join(("training", "config", *path[path.index(RUN_DOCUMENT) + 2 :]))
        return
    if path and any(fnmatchcase(place, pattern) for pattern, _ in EXCLUSIVE_KEYS_BY_PATH):
        yield from IDENTITY_KEYS
        yield from (one for pattern, keys in EXCLUSIVE_KEYS_BY_PATH if fnmatchcase(place, pattern) for one in keys)
        return
    for pattern, keys in KEYS_BY_PATH:
        if fnmatchcase(place, pattern):
            yield from keys


def _is_within(changed: str, candidate: str) -> bool:
    """Return True if the keys are equal or one contains the other, because an added section is one changed key."""
    return changed == candidate or changed.startswith(f"{candidate}.") or candidate.startswith(f"{changed}.")


def _overlap(one: PropertyPath, other: PropertyPath) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
