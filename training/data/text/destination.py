"""Destinations for tokenized datasets. Readers never see an incomplete dataset.

A directory is renamed into place. S3 does not support renaming, so dataset.json is written last.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.urls import open_backend
from training.data.dataset import RECORD_FILE, DatasetRecord, parse_record, read_record
from training.errors import DatasetError, NotFoundError, TokenizeError

UPLOADS = 8


class Destination(ABC):
    """The directory or S3 prefix that a dataset is written to."""

    url: str

    @abstractmethod
    def existing(self) -> DatasetRecord | None:
        """Return the existing dataset's record; None if there is no readable record."""

    @abstractmethod
    def publish(self, directory: Path) -> None:
        """Publish a finished dataset, replacing any older dataset."""

    @abstractmethod
    def unfinished(self) -> Path:
        """Return the directory for unfinished datasets."""

    @contextmanager
    def workspace(self, digest: str) -> Iterator[Path]:
        """Hold the working directory for the dataset with this digest.

        The directory keeps the files of an interrupted attempt at the same dataset. It is deleted when the dataset is
        published, or if the text or the settings are invalid.

        Raises:
            TokenizeError: Another process is creating this dataset.
        """
        unfinished = self.unfinished()
        unfinished.mkdir(parents=True, exist_ok=True)
        with (unfinished / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise TokenizeError(
                    [f"{self.url}: another process is creating this dataset; wait for it, or stop it"]
                ) from error
            directory = unfinished / digest[:16]
            for other in unfinished.iterdir():
                if other.is_dir() and other != directory:
                    shutil.rmtree(other)
            directory.mkdir(exist_ok=True)
            try:
                yield directory
            except TokenizeError:
                shutil.rmtree(unfinished)
                raise
            shutil.rmtree(unfinished)


class DirectoryDestination(Destination):
    """A dataset in the local file system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.url = str(directory)

    def existing(self) -> DatasetRecord | None:
        """Read the dataset.json."""
        try:
            return read_record(self._directory / RECORD_FILE)
        except DatasetError:
            return None

    def unfinished(self) -> Path:
        """Return a hidden sibling directory. It is on the same file system, so that renaming it is atomic."""
        return self._sibling("unfinished")

    def publish(self, directory: Path) -> None:
        """Sync the files and rename their directory into place."""
        if (
            self._directory.exists()
            and not (self._directory / RECORD_FILE).is_file()
            and any(self._directory.iterdir())
        ):
            raise TokenizeError([f"{self._directory}: not empty, and not a dataset; move it, or change --name"])
        for path in directory.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        old = self._sibling("replaced")
        shutil.rmtree(old, ignore_errors=True)
        if self._directory.exists():
            self._directory.rename(old)
        directory.rename(self._directory)
        shutil.rmtree(old, ignore_errors=True)

    def _sibling(self, word: str) -> Path:
        return self._directory.parent / f".{self._directory.name}.{word}"


class BucketDestination(Destination):
    """A dataset in S3."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.url = backend.url

    def existing(self) -> DatasetRecord | None:
        """Read the dataset.json."""
        try:
            return parse_record(self._backend.get(RECORD_FILE), self.url)
        except (NotFoundError, DatasetError):
            return None

    def unfinished(self) -> Path:
        """Return a directory in the user's cache."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "trainstack" / "tokenize" / blake3(self.url.encode()).hexdigest()[:16]

    def publish(self, directory: Path) -> None:
        """Delete the old record, upload the files in parallel, then upload the new record and delete leftover files."""
        old_files = self._backend.keys("")
        self._backend.delete([RECORD_FILE])
        names = sorted(path.name for path in directory.iterdir() if path.name != RECORD_FILE)
        with ThreadPoolExecutor(UPLOADS, thread_name_prefix="dataset-upload") as pool:
            for upload in [pool.submit(self._upload, directory, name) for name in names]:
                upload.result()
        self._upload(directory, RECORD_FILE)
        self._backend.delete([key for key in old_files if key not in {*names, RECORD_FILE} and "/" not in key])

    def _upload(self, directory: Path, name: str) -> None:
        self._backend.put(name, (directory / name).read_bytes())


def open_destination(output: str, name: str) -> Destination:
    """Open the destination for dataset ``name`` under a directory or `s3://bucket/prefix`."""
    if "://" in output:
        return BucketDestination(open_backend(f"{output.rstrip('/')}/{name}"))
    return DirectoryDestination(Path(output) / name)
