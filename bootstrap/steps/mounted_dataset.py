"""A dataset that is on a mounted volume or file system already: linked instead of copied.

It lies where the bucket has it: `datasets/<name>/` below the mount.
"""

from __future__ import annotations

import logging
from pathlib import Path

from bootstrap.dataset_index import index_files
from bootstrap.plan import Context

logger = logging.getLogger(__name__)


def link_mounted_dataset(context: Context, dataset: str, stored: str, index: str) -> Path | None:
    """Link the dataset's directory to a mounted one that holds the index; return that one, or None.

    Its name in the bucket, and below the mount, is `stored`. One with encoded files is staged: it must be expanded.

    A directory that an earlier staging filled stays what it is.
    """
    directory = context.layout.dataset(dataset)
    found = next((path for path in _candidates(context, stored) if _is_usable(path / index)), None)
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


def _is_usable(index: Path) -> bool:
    """Return whether a mounted index is there, and the files of which it tells lie there as they are read."""
    if not index.is_file():
        return False
    return not any(each.encoding for each in index_files(index.read_text(encoding="utf-8"), str(index)))


def _candidates(context: Context, stored: str) -> list[Path]:
    mounts = [volume.mount for volume in context.node.volumes if volume.kind != "checkpoint"]
    if context.node.lustre is not None:
        mounts.append(context.node.lustre.mount)
    return [Path(mount) / "datasets" / stored for mount in mounts]
