"""Old checkpoints that are kept for good, in a cheaper storage class of S3; and back.

Only chunks that neither of the newest two checkpoints has are moved, so that no resume and no running writer meets
one: what a writer refers to is in the newest checkpoint. Manifests and small chunks stay where they are: they are read
to list and to collect, and the colder classes bill an object as 128 KB at least. They also bill for a least time (30
days for STANDARD_IA and ONEZONE_IA, 90 for GLACIER_IR and GLACIER, 180 for DEEP_ARCHIVE), so that collecting a
checkpoint soon after saves nothing.
Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-class-intro.html (2025-06).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from training.checkpoint.backend import Backend
from training.checkpoint.inspection import Report
from training.checkpoint.parallel import results_of
from training.checkpoint.reading import TRANSFER_THREADS
from training.checkpoint.retention import LEAST_KEPT
from training.checkpoint.s3 import S3Backend, StoredObject
from training.checkpoint.selection import Selected
from training.checkpoint.store import CHUNK_PREFIX, list_checkpoints
from training.errors import ConfigurationError

ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")
"""Classes whose objects have to be restored before they can be read."""
SMALLEST_BYTES = 128 * 1024


def on_s3(backend: Backend) -> S3Backend:
    """The store, if it is one that has storage classes.

    Raises:
        ConfigurationError: it is a directory.
    """
    if not isinstance(backend, S3Backend):
        raise ConfigurationError([f"{backend.url}: only S3 has storage classes; give an s3:// URL"])
    return backend


def movable_chunks(backend: S3Backend, storage_class: str, sequence: int | None = None) -> dict[str, StoredObject]:
    """Chunks of older checkpoints that are not yet of a storage class: key to what they are.

    Args:
        backend: the store.
        storage_class: the one wanted.
        sequence: of the only checkpoint whose chunks are looked at; None: all but the newest two.
    """
    objects = backend.storage_classes(CHUNK_PREFIX)
    hot: set[str] = set()
    wanted: set[str] = set()
    whole = 0
    for listed in list_checkpoints(backend, set(objects)):
        if not listed.is_whole or listed.manifest is None:
            continue
        keys = {record.key for record in listed.manifest.chunks}
        if whole < LEAST_KEPT:
            hot |= keys
        if sequence is None or listed.entry.sequence == sequence:
            wanted |= keys
        whole += 1
    return {
        key: objects[key]
        for key in sorted(wanted - hot)
        if objects[key].bytes >= SMALLEST_BYTES and objects[key].storage_class != storage_class
    }


def move(backend: S3Backend, moved: Mapping[str, StoredObject], storage_class: str, report: Report) -> None:
    """Give chunks another storage class; those in an archive have to be restored first.

    Raises:
        StoreError: a request was refused; it says why.
    """
    _for_each(moved, lambda key: backend.change_storage_class(key, storage_class), report)


def archived_chunks(selected: Selected) -> dict[str, StoredObject]:
    """Chunks of a checkpoint that cannot be read before they are restored, whether or not they have been."""
    objects = on_s3(selected.backend).storage_classes(CHUNK_PREFIX)
    keys = sorted({record.key for record in selected.manifest.chunks})
    return {key: objects[key] for key in keys if objects[key].storage_class in ARCHIVES}


def restore(backend: S3Backend, archived: Mapping[str, StoredObject], days: int, tier: str, report: Report) -> None:
    """Ask for readable copies of archived chunks; S3 makes them in minutes to two days, by class and tier."""
    _for_each(archived, lambda key: backend.restore(key, days, tier), report)


def _for_each(objects: Mapping[str, StoredObject], act: Callable[[str], None], report: Report) -> None:
    def one(key: str) -> None:
        act(key)
        report(objects[key].bytes)

    with ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="checkpoint-class") as pool:
        results_of(pool, [pool.submit(one, key) for key in objects])
