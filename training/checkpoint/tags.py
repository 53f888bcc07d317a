"""Names that keep checkpoints, and marks of checkpoints that retention let go; neither can miss the other.

A tag is ``tags/<name>.json``, written over when it is moved. Before retention deletes anything of a checkpoint it
writes ``dropped/<sequence>.json`` and then looks for tags once more; who tags a checkpoint writes the tag and then
looks for that mark. Both places are strongly consistent, so at least one of the two sees the other and gives way. The
marks stay: they tell a checkpoint that was let go from one that was lost.
"""

from __future__ import annotations

import re
import time

from pydantic import Field, ValidationError

from training.checkpoint.backend import Backend
from training.checkpoint.manifest import LogEntry, Record
from training.errors import ConfigurationError, CorruptCheckpointError, NotFoundError, StoreError

TAG_PREFIX = "tags/"
DROPPED_PREFIX = "dropped/"
TAG_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
RESERVED_NAMES = ("newest",)
_DROPPED_KEY = re.compile(r"dropped/([0-9]{8})\.json")


class Tag(Record):
    """A name for a checkpoint."""

    schema_version: int = Field(default=1, ge=1, le=1)
    name: str
    sequence: int = Field(ge=0, description="Of its log entry.")
    step: int
    unix_seconds: float = Field(description="When it was given.")


def read_tags(backend: Backend) -> list[Tag]:
    """All tags, by name.

    Raises:
        CorruptCheckpointError: one cannot be read; what it keeps is not known, so that nothing may be deleted.
    """
    tags = []
    for key in backend.keys(TAG_PREFIX):
        try:
            tags.append(Tag.model_validate_json(backend.get(key)))
        except NotFoundError:
            continue  # removed since the listing
        except ValidationError as error:
            raise CorruptCheckpointError(
                f"{backend.url}/{key}: is not a tag ({error}); delete it, or give the tag again"
            ) from error
    return tags


def names_by_sequence(tags: list[Tag]) -> dict[int, list[str]]:
    """Names of the tags of each tagged log entry."""
    names: dict[int, list[str]] = {}
    for tag in tags:
        names.setdefault(tag.sequence, []).append(tag.name)
    return names


def put_tag(backend: Backend, name: str, entry: LogEntry) -> None:
    """Keep a checkpoint under a name; a tag of that name moves.

    Raises:
        ConfigurationError: that is no name for a tag.
        StoreError: retention has let the checkpoint go; the tag is not there.
    """
    _refuse_bad_name(name)
    assert entry.step is not None, "a checkpoint has a step"
    key = f"{TAG_PREFIX}{name}.json"
    try:
        before = backend.get(key)
    except NotFoundError:
        before = None
    tag = Tag(name=name, sequence=entry.sequence, step=entry.step, unix_seconds=time.time())
    backend.put(key, tag.model_dump_json().encode())
    if not backend.keys(_dropped_key(entry.sequence)):
        return
    if before is None:
        backend.delete([key])
    else:
        backend.put(key, before)
    raise StoreError(
        f"{backend.url}: the checkpoint of step {entry.step} (log entry {entry.sequence}) was let go by retention; tag "
        "one that `checkpoint ls` lists"
    )


def remove_tag(backend: Backend, name: str) -> None:
    """Give a name up; the next collection treats its checkpoint like any other.

    Raises:
        StoreError: there is no such tag.
    """
    _refuse_bad_name(name)
    key = f"{TAG_PREFIX}{name}.json"
    if key not in backend.keys(key):
        raise StoreError(f"{backend.url}: has no tag {name!r}; `checkpoint ls` shows those that there are")
    backend.delete([key])


def dropped_sequences(backend: Backend) -> set[int]:
    """Log entries of checkpoints that retention has let go."""
    matches = (_DROPPED_KEY.fullmatch(key) for key in backend.keys(DROPPED_PREFIX))
    return {int(match.group(1)) for match in matches if match}


def mark_dropped(backend: Backend, sequence: int) -> None:
    """Say that a checkpoint is let go, before anything of it is deleted."""
    backend.put(_dropped_key(sequence), b"{}")


def unmark_dropped(backend: Backend, sequences: set[int]) -> None:
    """Take that back."""
    backend.delete([_dropped_key(sequence) for sequence in sorted(sequences)])


def _dropped_key(sequence: int) -> str:
    return f"{DROPPED_PREFIX}{sequence:08d}.json"


def _refuse_bad_name(name: str) -> None:
    if not TAG_NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise ConfigurationError(
            [
                f"tag {name!r}: a letter, then at most 63 letters, digits, dots, dashes and underscores, and not "
                f"{' or '.join(RESERVED_NAMES)}; choose another name"
            ]
        )
