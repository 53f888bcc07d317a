"""Uploads a generation's results: metrics, outcomes, profiles, logs, dumps and files from the user's script.

After a generation ends with any outcome, its run directory (the trainers' working directory) is uploaded to
`runs/<fleet>/<run>/results/`. The smallest files are uploaded first, up to a limit, while the next generation starts.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path

from boto3.exceptions import Boto3Error

from bootstrap.aws import AWS_ERRORS
from bootstrap.context import Context
from bootstrap.documents.object_keys import run_prefix
from bootstrap.events.schema import ResultsUploaded

logger = logging.getLogger(__name__)

LIMIT_BYTES = 256 * 1024**2
"""Limit for one generation on one node. The script must store larger files in checkpoints or upload them itself."""
SKIPPED_SHOWN = 20
_REQUESTS = frozenset({"stop", "save"})


class Results:
    """Uploads results in the background, one generation at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._thread: threading.Thread | None = None

    def upload(self, run: str, generation: int, rank: int) -> None:
        """Start uploading a generation's run directory. `rank` is this node's rank."""
        before = self._thread

        def work() -> None:
            if before is not None:
                before.join()
            self._upload(run, generation, rank)

        self._thread = threading.Thread(target=work, name="results", daemon=True)
        self._thread.start()

    def finish(self, timeout_seconds: float) -> None:
        """Wait at most `timeout_seconds` for the current upload."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def _upload(self, run: str, generation: int, rank: int) -> None:
        directory = self._context.layout.run_directory(run, generation)
        selected, skipped = select(directory)
        bucket = self._context.node.checkpoint_bucket
        prefix = f"{run_prefix(self._context.node.deployment, run)}/results/gen-{generation}/node-{rank}"
        s3, sent_bytes, message = self._context.aws.client("s3"), 0, ""
        for path, size in selected:
            name = path.relative_to(directory).as_posix()
            try:
                s3.upload_file(str(path), bucket, f"{prefix}/{name}")
            except FileNotFoundError:  # a temporary file
                continue
            except (OSError, Boto3Error, *AWS_ERRORS) as error:
                message = f"{name}: {error}"
                break
            sent_bytes += size
        self._context.events.emit(
            ResultsUploaded(
                generation=generation,
                url=f"s3://{bucket}/{prefix}/",
                files=len(selected),
                bytes=sent_bytes,
                skipped_files=tuple(skipped[:SKIPPED_SHOWN]),
                message=message,
            )
        )


def select(directory: Path) -> tuple[list[tuple[Path, int]], list[str]]:
    """Return the files to upload with their sizes, smallest first, and the names of files over the limit."""
    found: list[tuple[int, Path]] = []
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
                found.append((status.st_size, path))
    selected: list[tuple[Path, int]] = []
    skipped: list[str] = []
    total_bytes = 0
    for size, path in sorted(found):
        total_bytes += size
        if total_bytes > LIMIT_BYTES:
            skipped.append(path.relative_to(directory).as_posix())
        else:
            selected.append((path, size))
    return selected, skipped
