"""Which keys of the deployment file caused a change: the keys that differ, by the places that they decide about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from stacks.changes.places import ANYWHERE, OF_DEPLOYMENT, PLACES
from stacks.changes.resources import Key, ResourceChange
from stacks.changes.schemas import PropertyPath
from stacks.changes.texts import RUN_DOCUMENT

NOT_OF_THE_FILE = "not from a key of the file"
OF_CODE = ("*/Code/S3*", "*/node document/bundle/*", "*/run document/code/*", "*/UserData/shim")
"""Places that change with the code too: a key is named only when it is known to differ."""
MOST_GUESSES = 3


@dataclass(frozen=True)
class Edit:
    """One key that differs; `before` and `after` are None where it was not, `source` the file if it is another."""

    key: str
    before: Any
    after: Any
    source: str | None = None

    def __str__(self) -> str:
        """Return the key, with the file that it is in when that is not the deployment file."""
        return self.key if self.source is None else f"{self.key} ({self.source})"


def edits(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterator[Edit]:
    """Yield the keys in which two files differ, defaults filled in; a section that comes or goes is one key."""
    for name in dict.fromkeys((*before, *after)):
        key, was, becomes = f"{prefix}{name}", before.get(name), after.get(name)
        if was == becomes:
            continue
        if isinstance(was, Mapping) and isinstance(becomes, Mapping):
            yield from edits(was, becomes, f"{key}.")
        else:
            yield Edit(key, was, becomes)


class Causes:
    """Tells for each place of a change the keys that caused it.

    Without `changed` (the file of the other side is not known) the keys are those that decide about the place.
    """

    def __init__(self, changes: Iterable[ResourceChange], changed: Sequence[Edit] | None) -> None:
        self._changes = {change.key: change for change in changes}
        self._changed = None if changed is None else [edit.key for edit in changed]

    @property
    def are_known(self) -> bool:
        """Whether both files are known, so that keys are causes and not guesses."""
        return self._changed is not None

    def of(self, key: Key, path: PropertyPath = ()) -> tuple[str, ...]:
        """Return the keys behind a place of a resource; none when the file is not where it comes from."""
        return tuple(dict.fromkeys(self._of(key, path, frozenset())))

    def of_change(self, change: ResourceChange) -> tuple[str, ...]:
        """Return the keys behind all that differs in a resource."""
        if not change.differences:
            return self.of(change.key)
        return tuple(dict.fromkeys(one for each in change.differences for one in self.of(change.key, each.path)))

    def text(self, keys: Sequence[str]) -> str:
        """Return causes in words."""
        if not keys:
            return NOT_OF_THE_FILE
        if self.are_known:
            return ", ".join(keys)
        return f"perhaps {', '.join(keys[:MOST_GUESSES])}" + (" or others" if len(keys) > MOST_GUESSES else "")

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
        deciding = list(_deciding(key, path))
        if self._changed is None:
            if not any(fnmatchcase("/".join((*key, *path)), pattern) for pattern in OF_CODE):
                yield from (one for one in deciding if one not in OF_DEPLOYMENT)
            return
        yield from (one for one in self._changed if any(_is_within(one, each) for each in deciding))


def _deciding(key: Key, path: PropertyPath) -> Iterator[str]:
    """Yield the keys that decide about a place."""
    place = "/".join((*key, *path))
    if RUN_DOCUMENT in path and path[path.index(RUN_DOCUMENT) + 1 :][:1] == ("training",):
        yield ".".join(("training", "config", *path[path.index(RUN_DOCUMENT) + 2 :]))
        return
    if path and any(fnmatchcase(place, pattern) for pattern, _ in ANYWHERE):
        yield from OF_DEPLOYMENT
        yield from (one for pattern, keys in ANYWHERE if fnmatchcase(place, pattern) for one in keys)
        return
    for pattern, keys in PLACES:
        if fnmatchcase(place, pattern):
            yield from keys


def _is_within(changed: str, deciding: str) -> bool:
    """Tell whether one key is the other, or a part of it, either way round: a section may come whole."""
    return changed == deciding or changed.startswith(f"{deciding}.") or deciding.startswith(f"{changed}.")


def _overlap(one: PropertyPath, other: PropertyPath) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
