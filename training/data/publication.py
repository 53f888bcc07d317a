"""Putting a finished dataset where it belongs, so that nobody ever sees half of one.

In a directory by renaming; in S3, which has no rename, by writing dataset.json last.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from training.checkpoint.backend import Backend, open_backend
from training.data.dataset import RECORD_FILE, DatasetRecord, read_record
from training.errors import DatasetError, NotFoundError, TokenizeError

UPLOADS = 8


class Destination(ABC):
    """Where a dataset goes."""

    url: str

    @abstractmethod
    def existing(self) -> DatasetRecord | None:
        """The record of the dataset that is there; None if there is none that can be read."""

    @abstractmethod
    def publish(self, directory: Path) -> None:
        """Put a finished dataset there, over an older one."""

    @abstractmethod
    def unfinished(self) -> Path:
        """The directory for what is not finished yet."""

    @contextmanager
    def workspace(self, digest: str) -> Iterator[Path]:
        """A directory for the making of the dataset with this digest.

        What a killed, interrupted or failed making of the same has left is in it; it is gone once the dataset is made,
        or when the text or the settings are found wrong.

        Raises:
            TokenizeError: another process is making this dataset.
        """
        place = self.unfinished()
        place.mkdir(parents=True, exist_ok=True)
        with (place / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise TokenizeError(
                    [f"{self.url}: is being made by another process; wait for it, or end it"]
                ) from error
            directory = place / digest[:16]
            for other in place.iterdir():
                if other.is_dir() and other != directory:
                    shutil.rmtree(other)
            directory.mkdir(exist_ok=True)
            try:
                yield directory
            except TokenizeError:
                shutil.rmtree(place)
                raise
            shutil.rmtree(place)


class DirectoryDestination(Destination):
    """A dataset in the local file system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.url = str(directory)

    def existing(self) -> DatasetRecord | None:
        """Read its dataset.json."""
        try:
            return read_record(self._directory / RECORD_FILE)
        except DatasetError:
            return None

    def unfinished(self) -> Path:
        """A hidden directory beside the place, so that renaming it there cannot fail half-way."""
        return self._beside("unfinished")

    def publish(self, directory: Path) -> None:
        """Sync the files and rename their directory into place."""
        if (
            self._directory.exists()
            and not (self._directory / RECORD_FILE).is_file()
            and any(self._directory.iterdir())
        ):
            raise TokenizeError(
                [f"{self._directory}: holds something that is no dataset; move it away, or change --name"]
            )
        for path in directory.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        old = self._beside("replaced")
        shutil.rmtree(old, ignore_errors=True)
        if self._directory.exists():
            self._directory.rename(old)
        directory.rename(self._directory)
        shutil.rmtree(old, ignore_errors=True)

    def _beside(self, word: str) -> Path:
        return self._directory.parent / f".{self._directory.name}.{word}"


class BucketDestination(Destination):
    """A dataset in S3."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.url = backend.url

    def existing(self) -> DatasetRecord | None:
        """Read its dataset.json."""
        try:
            content = self._backend.get(RECORD_FILE)
        except NotFoundError:
            return None
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / RECORD_FILE
            path.write_bytes(content)
            try:
                return read_record(path)
            except DatasetError:
                return None

    def unfinished(self) -> Path:
        """A directory in the user's cache."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "trainstack" / "tokenize" / blake3(self.url.encode()).hexdigest()[:16]

    def publish(self, directory: Path) -> None:
        """Withdraw the old record, upload everything else in parallel, then the record; remove what is left over."""
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
    """Open the place of dataset ``name`` under a directory or `s3://bucket/prefix`."""
    if "://" in output:
        return BucketDestination(open_backend(f"{output.rstrip('/')}/{name}"))
    return DirectoryDestination(Path(output) / name)
