"""Tags that keep checkpoints, and markers for checkpoints dropped by retention.

A tag is stored in ``tags/<name>.json``, which is overwritten when the tag moves. Before retention deletes a
checkpoint's chunks, it writes the marker ``dropped/<sequence>.json``, and then reads the tags again. A process that
tags a checkpoint writes the tag and then checks for the marker. Because the store is strongly consistent, at least one
of the two detects the other and backs off. Markers are kept to distinguish dropped checkpoints from lost ones.
"""

from __future__ import annotations

import logging
import re
import time

from pydantic import Field, ValidationError

from training.checkpoint.address import NEWEST, TAG_NAME
from training.checkpoint.manifest import LogEntry, Record
from training.checkpoint.storage.backend import Backend
from training.errors import ConfigurationError, CorruptCheckpointError, NotFoundError, StoreError

logger = logging.getLogger(__name__)

TAG_PREFIX = "tags/"
DROPPED_PREFIX = "dropped/"
RESERVED_NAMES = (NEWEST,)
MAX_TAGS = 1000
"""Maximum number of tags in a store. Every collection reads all of them."""
MAX_DROPPED = 200_000
"""Maximum number of markers to list, the same as for log entries."""
_DROPPED_KEY = re.compile(r"dropped/([0-9]{8})\.json")


class Tag(Record):
    """A name for a checkpoint."""

    schema_version: int = Field(default=1, ge=1, le=1)
    name: str
    sequence: int = Field(ge=0, description="Sequence number of the checkpoint's log entry.")
    step: int
    unix_seconds: float = Field(description="Time when the tag was set.")


def read_tags(backend: Backend) -> list[Tag]:
    """Return all tags, sorted by name.

    Raises:
        CorruptCheckpointError: A tag is damaged. The checkpoint that it keeps is unknown, so nothing may be deleted.
        StoreError: There are more than `MAX_TAGS` tags. The checkpoints that they keep are unknown too.
    """
    tags = []
    for key in _tag_keys(backend, MAX_TAGS):
        try:
            tags.append(_tag(backend, key))
        except NotFoundError:
            continue  # removed since the listing
    return tags


def read_tag(backend: Backend, name: str) -> Tag | None:
    """Return the tag with this name, or None if it does not exist.

    Raises:
        CorruptCheckpointError: The tag is damaged.
    """
    key = _tag_key(name)
    try:
        return _tag(backend, key)
    except NotFoundError:
        return None


def _tag(backend: Backend, key: str) -> Tag:
    try:
        return Tag.model_validate_json(backend.get(key))
    except ValidationError as error:
        raise CorruptCheckpointError(
            f"{backend.url}/{key}: not a valid tag ({error}); delete it, or set the tag again"
        ) from error


def _tag_keys(backend: Backend, most: int) -> list[str]:
    keys = backend.keys(TAG_PREFIX, most + 1)
    if len(keys) > most:
        raise StoreError(
            f"{backend.url}/{TAG_PREFIX}: has more than {most} objects, so no checkpoint is deleted; a store can have "
            f"{MAX_TAGS} tags: remove tags, and the objects that are not tags"
        )
    return keys


def names_by_sequence(tags: list[Tag]) -> dict[int, list[str]]:
    """Return each tagged log entry's tag names."""
    names: dict[int, list[str]] = {}
    for tag in tags:
        names.setdefault(tag.sequence, []).append(tag.name)
    return names


def put_tag(backend: Backend, name: str, entry: LogEntry) -> None:
    """Tag a checkpoint to keep it. If the tag exists, move it to this checkpoint.

    Raises:
        ConfigurationError: The name is not a valid tag name.
        StoreError: Retention has dropped the checkpoint, or the store has `MAX_TAGS` tags; the tag was not set.
    """
    _refuse_bad_name(name)
    assert entry.step is not None, "a checkpoint has a step"
    key = _tag_key(name)
    try:
        before = backend.get(key)
    except NotFoundError:
        before = None
        _tag_keys(backend, MAX_TAGS - 1)
    tag = Tag(name=name, sequence=entry.sequence, step=entry.step, unix_seconds=time.time())
    backend.put(key, tag.model_dump_json().encode())
    dropped = _dropped_key(entry.sequence)
    if backend.keys(dropped, 1) != [dropped]:
        return
    if before is None:
        backend.delete([key])
    else:
        backend.put(key, before)
    raise StoreError(
        f"{backend.url}: retention has dropped the checkpoint for step {entry.step} (log entry {entry.sequence}); tag "
        "a checkpoint that `checkpoint ls` lists"
    )


def remove_tag(backend: Backend, name: str) -> None:
    """Remove a tag. The next collection treats its checkpoint like any other checkpoint.

    Raises:
        StoreError: The tag does not exist.
    """
    _refuse_bad_name(name)
    key = _tag_key(name)
    if backend.keys(key, 1) != [key]:
        raise StoreError(f"{backend.url}: no tag {name!r}; `checkpoint ls` lists the tags")
    backend.delete([key])


def dropped_sequences(backend: Backend) -> set[int]:
    """Return the log entries of the checkpoints that retention has dropped.

    If there are more than `MAX_DROPPED` objects, markers are missing in the result. A checkpoint without a marker
    counts as lost instead of dropped, because its chunks do not exist.
    """
    keys = backend.keys(DROPPED_PREFIX, MAX_DROPPED)
    if len(keys) == MAX_DROPPED:
        logger.warning(
            "%s/%s: only the first %d objects are read; remove the objects that are not markers",
            backend.url, DROPPED_PREFIX, MAX_DROPPED,
        )  # fmt: skip
    matches = (_DROPPED_KEY.fullmatch(key) for key in keys)
    return {int(match.group(1)) for match in matches if match}


def mark_dropped(backend: Backend, sequence: int) -> None:
    """Mark a checkpoint as dropped, before any of its chunks are deleted."""
    backend.put(_dropped_key(sequence), b"{}")


def unmark_dropped(backend: Backend, sequences: set[int]) -> None:
    """Remove the markers of these checkpoints."""
    backend.delete([_dropped_key(sequence) for sequence in sorted(sequences)])


def _tag_key(name: str) -> str:
    return f"{TAG_PREFIX}{name}.json"


def _dropped_key(sequence: int) -> str:
    return f"{DROPPED_PREFIX}{sequence:08d}.json"


def _refuse_bad_name(name: str) -> None:
    if not TAG_NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise ConfigurationError(
            [
                f"tag {name!r}: must be a letter followed by at most 63 letters, digits, dots, dashes and underscores, "
                f"and not {' or '.join(RESERVED_NAMES)}; choose another name"
            ]
        )
