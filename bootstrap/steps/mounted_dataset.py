"""A dataset that is on a mounted volume or file system already: linked instead of copied, and read once when asked.

It lies where the bucket has it: `datasets/<name>/` below the mount.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bootstrap.plan import Context

logger = logging.getLogger(__name__)

READERS = 32
CHUNK_BYTES = 1024**2
PIECE_BYTES = 64 * 1024**2


def link_mounted_dataset(context: Context, dataset: str, index: str) -> Path | None:
    """Link the dataset's directory to a mounted one that holds the index; return that one, or None.

    A directory that an earlier staging filled stays what it is.
    """
    directory = context.layout.dataset(dataset)
    found = next((path for path in _candidates(context, dataset) if (path / index).is_file()), None)
    if found is None:
        if directory.is_symlink():  # to what is no longer mounted
            directory.unlink()
        return None
    if directory.is_symlink() and directory.readlink() == found:
        return found
    if directory.is_symlink():
        directory.unlink()
    elif directory.exists():
        return None
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.symlink_to(found)
    logger.info("%s: is read from %s", dataset, found)
    return found


def is_warmed(context: Context, directory: Path) -> bool:
    """Tell whether the node document asks to read what is in a mounted directory before training does."""
    return any(volume.warm and Path(volume.mount) in directory.parents for volume in context.node.volumes)


def read_once(paths: Sequence[Path]) -> int:
    """Read files to their end, many pieces at a time; return the bytes read.

    The blocks of a volume from a snapshot come from S3 at their first reading, each after a wait: only many at once
    make use of the volume's speed. Source: https://docs.aws.amazon.com/ebs/latest/userguide/initalize-volume.html
    (2026-11).

    Raises:
        OSError: A file cannot be read.
    """
    pieces = [(path, offset) for path in paths for offset in range(0, path.stat().st_size, PIECE_BYTES)]
    with ThreadPoolExecutor(READERS, thread_name_prefix="warm") as readers:
        return sum(readers.map(_read_piece, pieces))


def _read_piece(piece: tuple[Path, int]) -> int:
    path, offset = piece
    done = 0
    with path.open("rb", buffering=0) as stream:
        stream.seek(offset)
        while done < PIECE_BYTES:
            chunk = stream.read(min(CHUNK_BYTES, PIECE_BYTES - done))
            if not chunk:
                break
            done += len(chunk)
    return done


def _candidates(context: Context, dataset: str) -> list[Path]:
    mounts = [volume.mount for volume in context.node.volumes if volume.kind != "checkpoint"]
    if context.node.lustre is not None:
        mounts.append(context.node.lustre.mount)
    return [Path(mount) / "datasets" / dataset for mount in mounts]
