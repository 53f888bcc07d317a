"""Uploads a generation's results: metrics, outcomes, profiles, logs, dumps and files from the user's script.

After a generation ends with any outcome, its run directory (the trainers' working directory) is uploaded to
`runs/<fleet>/<run>/results/`. The smallest files are uploaded first, up to a limit, while the next generation starts.
The files of TensorBoard, Weights & Biases and MLflow are also uploaded while the generation trains.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boto3.exceptions import Boto3Error

from bootstrap.aws import AWS_ERRORS
from bootstrap.context import Context
from bootstrap.documents.object_keys import is_tracking_file, results_prefix
from bootstrap.errors import BootstrapError
from bootstrap.events.schema import ResultsUploaded

logger = logging.getLogger(__name__)

LIMIT_BYTES = 256 * 1024**2
"""Limit for one generation on one node. The script must store larger files in checkpoints or upload them itself."""
EVENT_FILE_LIMIT_BYTES = 32 * 1024**2
"""Limit for an event file that is uploaded during training. S3 cannot append, so each upload repeats the file."""
EVENT_FILES_INTERVAL_SECONDS = 30.0
SKIPPED_SHOWN = 20
_REQUESTS = frozenset({"stop", "save"})


@dataclass(frozen=True)
class _Part:
    """This node's part in a generation."""

    run: str
    generation: int
    rank: int


class Results:
    """Uploads results in the background, one generation at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._thread: threading.Thread | None = None
        self._training: _Part | None = None
        self._sent: dict[Path, tuple[int, int]] = {}
        self._sending = threading.Lock()  # an older event file must not replace the complete one

    def follow(self, run: str, generation: int, rank: int) -> None:
        """Upload the event files of a generation until its results are uploaded."""
        self._training = _Part(run, generation, rank)

    def upload_event_files(self) -> None:
        """Upload the event and tracking files of the current generation that have changed since the last call.

        Raises:
            BootstrapError: S3 rejected an upload.
        """
        with self._sending:
            part = self._training
            if part is None:
                return
            directory = self._context.layout.run_directory(part.run, part.generation)
            changed: dict[Path, tuple[int, int]] = {}
            for path, status in _files(directory):
                version = (status.st_size, status.st_mtime_ns)
                is_growing = is_tracking_file(path.relative_to(directory).as_posix())
                is_wanted = is_growing and 0 < status.st_size <= EVENT_FILE_LIMIT_BYTES
                if is_wanted and self._sent.get(path) != version:
                    changed[path] = version
            if not changed:
                return
            s3 = self._context.aws.client("s3", patience="low")
            for path, version in changed.items():
                try:
                    self._send(s3, part, directory, path)
                except FileNotFoundError:
                    continue
                except (OSError, Boto3Error, *AWS_ERRORS) as error:
                    raise BootstrapError(f"{path}: cannot be uploaded: {error}") from error
                self._sent[path] = version

    def upload(self, run: str, generation: int, rank: int) -> None:
        """Start uploading a generation's run directory. `rank` is this node's rank."""
        self._training = None
        before = self._thread

        def work() -> None:
            if before is not None:
                before.join()
            with self._sending:
                self._sent.clear()
                self._upload(_Part(run, generation, rank))

        self._thread = threading.Thread(target=work, name="results", daemon=True)
        self._thread.start()

    def finish(self, timeout_seconds: float) -> None:
        """Wait at most `timeout_seconds` for the current upload."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def _prefix(self, part: _Part) -> str:
        prefix = results_prefix(self._context.node.deployment, part.run)
        return f"{prefix}gen-{part.generation}/node-{part.rank}/"

    def _send(self, s3: Any, part: _Part, directory: Path, path: Path) -> None:
        key = self._prefix(part) + path.relative_to(directory).as_posix()
        s3.upload_file(str(path), self._context.node.checkpoint_bucket, key)

    def _upload(self, part: _Part) -> None:
        directory = self._context.layout.run_directory(part.run, part.generation)
        selected, skipped = select(directory)
        s3, sent_bytes, message = self._context.aws.client("s3"), 0, ""
        for path, size in selected:
            try:
                self._send(s3, part, directory, path)
            except FileNotFoundError:  # a temporary file
                continue
            except (OSError, Boto3Error, *AWS_ERRORS) as error:
                message = f"{path.relative_to(directory).as_posix()}: {error}"
                break
            sent_bytes += size
        self._context.events.emit(
            ResultsUploaded(
                generation=part.generation,
                url=f"s3://{self._context.node.checkpoint_bucket}/{self._prefix(part)}",
                files=len(selected),
                bytes=sent_bytes,
                skipped_files=tuple(skipped[:SKIPPED_SHOWN]),
                message=message,
            )
        )


def select(directory: Path) -> tuple[list[tuple[Path, int]], list[str]]:
    """Return the files to upload with their sizes, smallest first, and the names of files over the limit."""
    found = sorted((status.st_size, path) for path, status in _files(directory))
    selected: list[tuple[Path, int]] = []
    skipped: list[str] = []
    total_bytes = 0
    for size, path in found:
        total_bytes += size
        if total_bytes > LIMIT_BYTES:
            skipped.append(path.relative_to(directory).as_posix())
        else:
            selected.append((path, size))
    return selected, skipped


def _files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the regular files below a run directory, without the requests to the trainers."""
    for parent, _, names in os.walk(directory):
        for name in names:
            path = Path(parent) / name
            if path.parent == directory and (name in _REQUESTS or name.startswith(".")):
                continue
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):  # reading an NCCL pipe would block
                yield path, status
