"""Downloads large objects from S3 in parallel ranges, hashes them on arrival, and resumes interrupted downloads.

Every request names the object's ETag, so all bytes come from one version. Failed ranges are retried after a random
wait. The number of requests doubles as long as the rate increases, and halves when S3 returns SlowDown.

On two cores, the processor is the bottleneck. One GiB took 1 core-second in the kernel (socket to memory, memory to
page cache), 0.3 for the hash, and 0.3 for requests and start-up. s5cmd took 1.1 core-seconds in total, without a hash.
S3 serves 85 to 90 MB/s per connection, so 100 Gbit/s requires 140 connections. The number of connections therefore
grows with the cores, and the number of processes with the connections, because one process uses at most one core. On
such machines, all cores share the hashing, and the disk is the bottleneck.
Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html (2026-11).
"""

from __future__ import annotations

import errno
import heapq
import logging
import os
import queue
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from botocore.httpsession import get_cert_path

from bootstrap.aws import AWS_ERRORS, READ_TIMEOUT_SECONDS
from bootstrap.context import Context
from bootstrap.errors import StepError
from bootstrap.fetch import hasher, worker
from bootstrap.fetch.child import Answers, Child
from bootstrap.fetch.partial import Origin, Partial
from bootstrap.fetch.progress import Progress
from bootstrap.fetch.window import Window
from bootstrap.interpreter import find_interpreter

logger = logging.getLogger(__name__)

PART_BYTES = 8 * 1024 * 1024
CONNECTIONS_PER_CORE = 16
MIN_CONNECTIONS, MAX_CONNECTIONS = 64, 256
CONNECTIONS_PER_PROCESS = 16
ATTEMPTS = 8
INITIAL_WAIT_SECONDS, MAX_WAIT_SECONDS = 0.2, 10.0
_QUEUED = 1.25  # requests per connection: some wait in the worker so that no connection is idle
_PERMANENT = {"NoSuchKey", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket"}
_FULL = ("ENOSPC", "EDQUOT")
_DAMAGED = "the dataset is damaged or was overwritten during the download: tokenize it again"

Finished = Callable[[str, str | None], None]
"""Receives the object's name, and its BLAKE3 hash if requested, just before the file is renamed."""


@dataclass(frozen=True)
class LargeObject:
    """An object to download.

    Attributes:
        key: Key of the object.
        file: Name of the destination file.
        size: Size in bytes.
        hashed: Whether to compute the BLAKE3 hash.
    """

    key: str
    file: str
    size: int
    hashed: bool


@dataclass
class _Download:
    """The download of one object."""

    wanted: LargeObject
    partial: Partial
    hashable_bytes: int = 0


@dataclass(order=True)
class _Range:
    """One part of an object, with the time of the next request and the number of attempts."""

    due_seconds: float
    download: _Download = field(compare=False)
    part: int = field(compare=False)
    attempts: int = field(default=0, compare=False)


def download_large(
    context: Context, bucket: str, objects: Sequence[LargeObject], directory: Path, finished: Finished
) -> None:
    """Download objects to files in a directory.

    Raises:
        StepError: An object is missing, has the wrong size or changes, S3 does not respond, or the disk is full.
    """
    with _Downloads(context, bucket, objects, directory, finished) as downloads:
        downloads.run()


class _Downloads:
    """All downloads of one call."""

    def __init__(
        self, context: Context, bucket: str, objects: Sequence[LargeObject], directory: Path, finished: Finished
    ) -> None:
        self._context = context
        self._bucket = bucket
        self._directory = directory
        self._finished = finished
        self._new = self._ranges(objects)
        self._open: dict[str, _Download] = {}
        self._in_flight: dict[int, _Range] = {}
        self._retries: list[_Range] = []
        self._last_id = 0
        self._answers: Answers = queue.SimpleQueue()
        self._workers: list[Child] = []
        # Unlike the workers, not isolated: the training interpreter may find its packages through the environment.
        self._hashing = Child(context.system, [find_interpreter(context), hasher.__file__], self._answers)
        cores = os.cpu_count() or 1
        maximum = min(max(cores * CONNECTIONS_PER_CORE, MIN_CONNECTIONS), MAX_CONNECTIONS)
        self._window = Window(MIN_CONNECTIONS, maximum)
        self._progress = Progress(context, sum(each.size for each in objects))

    def __enter__(self) -> _Downloads:
        return self

    def __exit__(self, *_: object) -> None:
        for child in (*self._workers, self._hashing):
            child.kill()
        for download in self._open.values():
            download.partial.close()

    def run(self) -> None:
        """Download all objects."""
        deadline = self._now() + self._context.node.supervise.boot_timeout_seconds
        while True:
            self._start_workers()  # the first processes start while the first object is inspected
            while len(self._in_flight) < self._window.size * _QUEUED and (following := self._next()) is not None:
                self._request(following, min(self._workers, key=lambda child: child.pending))
            if not (self._open or self._in_flight or self._retries):
                return
            self._wait(deadline)

    def _start_workers(self) -> None:
        """Start enough processes for the connections."""
        authorities = self._context.system.environment().get("AWS_CA_BUNDLE") or str(get_cert_path(True))
        arguments = [str(CONNECTIONS_PER_PROCESS), str(READ_TIMEOUT_SECONDS), authorities]
        command = [sys.executable, "-IS", worker.__file__, *arguments]
        while len(self._workers) * CONNECTIONS_PER_PROCESS < self._window.size:
            self._workers.append(Child(self._context.system, command, self._answers))

    def _now(self) -> float:
        return self._context.system.monotonic_seconds()

    def _next(self) -> _Range | None:
        if self._retries and self._retries[0].due_seconds <= self._now():
            return heapq.heappop(self._retries)
        return next(self._new, None)

    def _ranges(self, objects: Sequence[LargeObject]) -> Iterator[_Range]:
        for wanted in objects:
            download = self._open_download(wanted)
            partial = download.partial
            self._open[str(partial.path)] = download
            present = sum(partial.span(part)[1] for part in partial.done)
            self._progress.add(present)
            if present:
                logger.info("%s: resuming with %d of %d bytes", wanted.key, present, wanted.size)
                self._advance(download)
            missing = [part for part in range(partial.count) if part not in partial.done]
            yield from (_Range(0.0, download, part) for part in missing)

    def _open_download(self, wanted: LargeObject) -> _Download:
        try:
            head = self._context.aws.client("s3", patience="high").head_object(Bucket=self._bucket, Key=wanted.key)
        except AWS_ERRORS as error:
            raise self._failure(wanted, f"cannot download: {error}") from error
        if head["ContentLength"] != wanted.size:
            raise self._damaged(wanted, f"found {head['ContentLength']} bytes, expected {wanted.size}")
        origin = Origin(head["ETag"], wanted.size, PART_BYTES, self._context.system.boot_id())
        try:
            partial = Partial(self._context.system, self._directory, Path(wanted.key).name, origin)
        except OSError as error:
            raise self._cannot_write(error.strerror or str(error), full=error.errno == errno.ENOSPC) from error
        return _Download(wanted, partial)

    def _request(self, requested: _Range, child: Child) -> None:
        download = requested.download
        first, count = download.partial.span(requested.part)
        headers = {"Range": f"bytes={first}-{first + count - 1}", "If-Match": download.partial.origin.etag}
        try:
            url, headers = self._context.aws.signed_get(self._bucket, download.wanted.key, headers)
        except AWS_ERRORS as error:
            raise self._failure(download.wanted, f"cannot sign a request: {error}") from error
        self._last_id += 1
        self._in_flight[self._last_id] = requested
        requested.attempts += 1
        child.pending += 1
        task = {"id": self._last_id, "url": url, "headers": headers, "path": str(download.partial.path)}
        child.send({**task, "first": first, "count": count})

    def _wait(self, deadline: float) -> None:
        """Handle one response, or wait until a retry is due."""
        until = min([self._retries[0].due_seconds, deadline] if self._retries else [deadline])
        try:
            child, answer = self._answers.get(timeout=max(0.0, until - self._now()))
        except queue.Empty:
            if self._now() >= deadline:
                raise StepError(
                    f"s3://{self._bucket}: the download took longer than boot_timeout_seconds",
                    remedy="see the rate in the staging_progress events, or raise node.boot_timeout_seconds",
                ) from None
            return
        if answer is None:
            raise StepError(
                f"{' '.join(child.command[:3])}: exited during the download",
                remedy="see its standard error and the kernel log (out of memory); then boot again",
            )
        if child is self._hashing:
            self._handle_hash(answer)
            return
        requested = self._in_flight.pop(answer["id"])
        child.pending -= 1
        if "problem" in answer:
            self._handle_failure(requested, answer)
            return
        partial = requested.download.partial
        count = partial.span(requested.part)[1]
        self._window.received(count, self._now())
        partial.record(requested.part)
        self._progress.add(count, received=True)
        self._advance(requested.download)

    def _advance(self, download: _Download) -> None:
        """Pass new leading bytes to the hasher, or finish a file that is not hashed."""
        partial = download.partial
        if download.wanted.hashed:
            ready = partial.front_bytes()
            if ready > download.hashable_bytes:
                download.hashable_bytes = ready
                self._hashing.send({"path": str(partial.path), "size": download.wanted.size, "ready": ready})
        elif partial.is_complete():
            self._finish(download, None)

    def _handle_hash(self, answer: Mapping[str, Any]) -> None:
        download = self._open[answer["path"]]
        if "problem" in answer:
            raise StepError(
                f"{answer['path']}: cannot hash: {answer['problem']}",
                remedy="install blake3 for the training interpreter, and list it in node.python.packages",
            )
        self._finish(download, answer["hash"])

    def _finish(self, download: _Download, digest: str | None) -> None:
        del self._open[str(download.partial.path)]
        self._finished(Path(download.wanted.key).name, digest)
        download.partial.finish(self._directory / download.wanted.file)

    def _handle_failure(self, requested: _Range, answer: Mapping[str, Any]) -> None:
        """Schedule a retry.

        Raises:
            StepError: A retry would not help.
        """
        wanted, problem, status = requested.download.wanted, answer["problem"], answer.get("status")
        if "errno" in answer:
            raise self._cannot_write(problem, full=answer["errno"] in _FULL)
        if status == 412:
            requested.download.partial.discard()
            raise self._damaged(wanted, "the object changed during the download (its ETag differs)")
        if answer.get("code") in _PERMANENT or status == 404 or requested.attempts >= ATTEMPTS:
            first, _ = requested.download.partial.span(requested.part)
            problem = f"{problem} {answer.get('code') or ''}".rstrip()
            raise self._failure(
                wanted, f"cannot download: {problem}, at byte {first}, after {requested.attempts} attempts"
            )
        if status in (429, 503):
            self._window.refused(self._now())
        limit = min(MAX_WAIT_SECONDS, INITIAL_WAIT_SECONDS * 2**requested.attempts)
        requested.due_seconds = self._now() + random.uniform(0, limit)  # noqa: S311 not a secret
        logger.warning("%s: part %d: %s; retrying", wanted.key, requested.part, problem)
        heapq.heappush(self._retries, requested)

    def _failure(self, wanted: LargeObject, what: str) -> StepError:
        return StepError(
            f"s3://{self._bucket}/{wanted.key}: {what}",
            remedy="check that the object exists, that the node's role may read it, and that the endpoint responds; "
            "booting again resumes the download",
        )

    def _damaged(self, wanted: LargeObject, what: str) -> StepError:
        return StepError(f"s3://{self._bucket}/{wanted.key}: {what}", remedy=_DAMAGED)

    def _cannot_write(self, problem: str, *, full: bool) -> StepError:
        if full:
            remedy = "raise node.root_volume.gib, or use a smaller dataset"
            return StepError(f"{self._directory}: the disk is full: {problem}", remedy=remedy)
        return StepError(f"{self._directory}: cannot write: {problem}", remedy="check the disk")
