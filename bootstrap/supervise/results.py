"""Uploads what a generation leaves beside its checkpoints: metrics, outcomes, profiles, logs, what a script wrote, and
the stacks and records of collectives of ranks that hung.

Everything in the run directory, which is the trainers' working directory, goes to `runs/<run>/results/` when the
generation has ended, however it did: the smallest files first, up to a bound, beside the next generation's start.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path

from boto3.exceptions import Boto3Error

from bootstrap.aws import AWS_ERRORS
from bootstrap.plan import Context

logger = logging.getLogger(__name__)

LIMIT_BYTES = 256 * 1024**2
"""Of one generation on one node: larger things belong into checkpoints, or the script's own uploads."""
LEFT_OUT_SHOWN = 20
_REQUESTS = frozenset({"stop", "save"})


class Results:
    """Uploads in the background; one at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._thread: threading.Thread | None = None

    def upload(self, run: str, generation: int, rank: int) -> None:
        """Begin to upload what is in the run directory of a generation on the node of this rank."""
        before = self._thread

        def work() -> None:
            if before is not None:
                before.join()
            self._upload(run, generation, rank)

        self._thread = threading.Thread(target=work, name="results", daemon=True)
        self._thread.start()

    def finish(self, timeout_seconds: float) -> None:
        """Wait for the upload under way, if there is one, but no longer than that."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def _upload(self, run: str, generation: int, rank: int) -> None:
        directory = self._context.layout.run_directory(run, generation)
        chosen, left_out = choose(directory)
        bucket = self._context.node.checkpoint_bucket
        prefix = f"runs/{run}/results/gen-{generation}/node-{rank}"
        s3, sent_bytes, message = self._context.aws.client("s3"), 0, ""
        for path, size in chosen:
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
            "results_uploaded",
            generation=generation,
            place=f"s3://{bucket}/{prefix}/",
            files=len(chosen),
            bytes=sent_bytes,
            left_out=left_out[:LEFT_OUT_SHOWN],
            message=message,
        )


def choose(directory: Path) -> tuple[list[tuple[Path, int]], list[str]]:
    """Return the files to upload with their sizes, the smallest first, and the names of those that are too much."""
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
            if stat.S_ISREG(status.st_mode):  # reading a pipe of NCCL's would never end
                found.append((status.st_size, path))
    chosen: list[tuple[Path, int]] = []
    left_out: list[str] = []
    total_bytes = 0
    for size, path in sorted(found):
        total_bytes += size
        if total_bytes > LIMIT_BYTES:
            left_out.append(path.relative_to(directory).as_posix())
        else:
            chosen.append((path, size))
    return chosen, left_out
