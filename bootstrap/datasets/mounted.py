"""Links a dataset on a mounted volume or file system instead of copying it.

Its path under the mount point is the same as in the bucket: `datasets/<name>/`.
"""

from __future__ import annotations

import logging
from pathlib import Path

from bootstrap.context import Context
from bootstrap.datasets.index import index_files

logger = logging.getLogger(__name__)


def link_mounted_dataset(context: Context, dataset: str, stored: str, index: str) -> Path | None:
    """Link the dataset's directory to a mounted directory with the index. Return the mounted directory, or None.

    A dataset with encoded files is not linked, because its files must be decoded. An already staged directory is kept.

    Args:
        context: The context of the step.
        dataset: Name of the dataset on the node.
        stored: Name of the dataset in the bucket and under the mount point.
        index: File name of the index.
    """
    directory = context.layout.dataset(dataset)
    found = next((path for path in _candidates(context, stored) if _is_usable(path / index)), None)
    if found is None:
        if directory.is_symlink():  # the target is no longer mounted
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
    logger.info("%s: using the mounted dataset at %s", dataset, found)
    return found


def _is_usable(index: Path) -> bool:
    """Return True if a mounted index exists and lists no encoded files."""
    if not index.is_file():
        return False
    return not any(each.encoding for each in index_files(index.read_text(encoding="utf-8"), str(index)))


def _candidates(context: Context, stored: str) -> list[Path]:
    mounts = [volume.mount for volume in context.node.volumes if volume.kind != "checkpoint"]
    if context.node.lustre is not None:
        mounts.append(context.node.lustre.mount)
    return [Path(mount) / "datasets" / stored for mount in mounts]
