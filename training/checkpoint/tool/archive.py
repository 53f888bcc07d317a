"""Moves old, permanently kept checkpoints to a cheaper S3 storage class, and restores archived checkpoints.

The chunks of the newest two checkpoints are never moved. Neither a resuming run nor a running writer therefore needs
moved chunks: both refer only to the newest checkpoints. Manifests and small chunks are not moved either: `ls` and `gc`
read manifests, and the colder classes bill at least 128 KB per object. The classes also bill for a minimum duration: 30
days for STANDARD_IA and ONEZONE_IA, 90 for GLACIER_IR and GLACIER, and 180 for DEEP_ARCHIVE. Archiving a checkpoint
shortly before its deletion therefore saves no money.
Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-class-intro.html (2025-06).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from training.checkpoint.manifest import CHUNK_PREFIX
from training.checkpoint.retention import MIN_KEPT
from training.checkpoint.selection import Selected
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.parallel import TRANSFER_THREADS, Report, results_of
from training.checkpoint.storage.s3 import S3Backend, StoredObject
from training.checkpoint.store import list_checkpoints
from training.errors import ConfigurationError

ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")
"""Storage classes that require a restore before objects can be read."""
SMALLEST_BYTES = 128 * 1024


def on_s3(backend: Backend) -> S3Backend:
    """Return the store as an S3 store.

    Raises:
        ConfigurationError: The store is a directory.
    """
    if not isinstance(backend, S3Backend):
        raise ConfigurationError([f"{backend.url}: storage classes exist only in S3; specify an s3:// URL"])
    return backend


def movable_chunks(backend: S3Backend, storage_class: str, sequence: int | None = None) -> dict[str, StoredObject]:
    """Return the chunks of older checkpoints that are not in the storage class yet, by key.

    Args:
        backend: the checkpoint store.
        storage_class: the target class.
        sequence: one checkpoint's log entry; None: all checkpoints except the newest two.
    """
    objects = backend.storage_classes(CHUNK_PREFIX)
    hot: set[str] = set()
    wanted: set[str] = set()
    complete = 0
    for listed in list_checkpoints(backend, lambda keys: sorted(set(keys) - objects.keys())):
        if not listed.is_complete or listed.manifest is None:
            continue
        keys = {record.key for record in listed.manifest.chunks}
        if complete < MIN_KEPT:
            hot |= keys
        if sequence is None or listed.entry.sequence == sequence:
            wanted |= keys
        complete += 1
    return {
        key: objects[key]
        for key in sorted(wanted - hot)
        if objects[key].bytes >= SMALLEST_BYTES and objects[key].storage_class != storage_class
    }


def move(backend: S3Backend, moved: Mapping[str, StoredObject], storage_class: str, report: Report) -> None:
    """Change the chunks' storage class. Archived chunks must be restored first.

    Raises:
        StoreError: S3 rejected a request.
    """
    _for_each(moved, lambda key: backend.change_storage_class(key, storage_class), report)


def archived_chunks(selected: Selected) -> dict[str, StoredObject]:
    """Return a checkpoint's chunks in archive classes, restored or not."""
    objects = on_s3(selected.backend).storage_classes(CHUNK_PREFIX)
    keys = sorted({record.key for record in selected.manifest.chunks})
    return {key: objects[key] for key in keys if objects[key].storage_class in ARCHIVES}


def restore(backend: S3Backend, archived: Mapping[str, StoredObject], days: int, tier: str, report: Report) -> None:
    """Request readable copies of archived chunks. S3 takes minutes to two days, depending on class and tier."""
    _for_each(archived, lambda key: backend.restore(key, days, tier), report)


def _for_each(objects: Mapping[str, StoredObject], act: Callable[[str], None], report: Report) -> None:
    def one(key: str) -> None:
        act(key)
        report(objects[key].bytes)

    with ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="checkpoint-class") as pool:
        results_of(pool, [pool.submit(one, key) for key in objects])
