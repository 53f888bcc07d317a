"""Copies large objects from S3: in ranges, over many connections, hashed behind the front, and resumed range by range.

Every request names the object's ETag, so that all bytes are of one object. What fails for a while is asked for again,
after a random wait. Requests are doubled while that makes the copy faster, and halved when S3 says SlowDown.

What bounds it: on two cores, the processor. A GiB took 1 core-second in the kernel (socket to memory, memory to page
cache), 0.3 for the hash and 0.3 for requests and start-up; s5cmd took 1.1 in all, and hashes nothing. Connections grow
with the cores, for S3 gives each 85 to 90 MB/s: 100 Gbit/s are 140 of them; and processes with the connections, for one
does no more than a core's work. There the hash is made by all cores, and what remains is the disk.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from botocore.httpsession import get_cert_path

from bootstrap.aws import AWS_ERRORS, READ_TIMEOUT_SECONDS
from bootstrap.errors import StepError
from bootstrap.fetch import hasher, worker
from bootstrap.fetch.child import Answers, Child
from bootstrap.fetch.partial import Origin, Partial, boot_id
from bootstrap.fetch.progress import Progress
from bootstrap.fetch.window import Window
from bootstrap.plan import Context
from bootstrap.steps.interpreter import find_interpreter

logger = logging.getLogger(__name__)

PART_BYTES = 8 * 1024 * 1024
CONNECTIONS_A_CORE = 16
LEAST_CONNECTIONS, MOST_CONNECTIONS = 64, 256
CONNECTIONS_A_PROCESS = 16
ATTEMPTS = 8
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.2, 10.0
_QUEUED = 1.25  # requests for each connection: one waits while an answer is on its way
_LASTING = {"NoSuchKey", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket"}
_FULL = ("ENOSPC", "EDQUOT")
_DAMAGED = "the dataset is damaged, or was written again during the copy: tokenize it again"

Finished = Callable[[str, Optional[str]], None]
"""Is told a file's name, and its BLAKE3 where that was to be made, just before the file gets its final name."""


@dataclass(frozen=True)
class LargeObject:
    """An object of `size` bytes: its `key`, the `file` that it becomes, and whether that is hashed."""

    key: str
    file: str
    size: int
    hashed: bool


@dataclass
class _Copy:
    """One object on its way."""

    wanted: LargeObject
    partial: Partial
    told_bytes: int = 0


@dataclass(order=True)
class _Range:
    """One part of an object: when it may be asked for (again), and how often it was."""

    due_seconds: float
    copy: _Copy = field(compare=False)
    part: int = field(compare=False)
    attempts: int = field(default=0, compare=False)


def copy_large(
    context: Context, bucket: str, objects: Sequence[LargeObject], directory: Path, finished: Finished
) -> None:
    """Copy objects to files of a directory.

    Raises:
        StepError: An object is not there, or not as it should be, or changes; S3 does not answer; the disk is full.
    """
    with _Copies(context, bucket, objects, directory, finished) as copies:
        copies.run()


class _Copies:
    """What is under way."""

    def __init__(
        self, context: Context, bucket: str, objects: Sequence[LargeObject], directory: Path, finished: Finished
    ) -> None:
        self._context = context
        self._bucket = bucket
        self._directory = directory
        self._finished = finished
        self._boot_id = boot_id(context.system)
        self._fresh = self._ranges(objects)
        self._open: dict[str, _Copy] = {}
        self._asked: dict[int, _Range] = {}
        self._again: list[_Range] = []
        self._count = 0
        self._answers: Answers = queue.SimpleQueue()
        self._workers: list[Child] = []
        # Not isolated as the workers are: the interpreter that trains may find its packages by its environment.
        self._hashing = Child(context.system, [find_interpreter(context), hasher.__file__], self._answers)
        cores = os.cpu_count() or 1
        most = min(max(cores * CONNECTIONS_A_CORE, LEAST_CONNECTIONS), MOST_CONNECTIONS)
        self._window = Window(LEAST_CONNECTIONS, most)
        self._progress = Progress(context, sum(each.size for each in objects))

    def __enter__(self) -> _Copies:
        return self

    def __exit__(self, *_: object) -> None:
        for child in (*self._workers, self._hashing):
            child.end()
        for copy in self._open.values():
            copy.partial.close()

    def run(self) -> None:
        """Copy everything."""
        deadline = self._now() + self._context.node.supervise.boot_timeout_seconds
        while True:
            self._start_workers()  # the first come up while the first object is looked at
            while len(self._asked) < self._window.size * _QUEUED and (following := self._next()) is not None:
                self._ask(following, min(self._workers, key=lambda child: child.asked))
            if not (self._open or self._asked or self._again):
                return
            self._wait(deadline)

    def _start_workers(self) -> None:
        """Have as many processes as the connections ask for."""
        authorities = self._context.system.environment().get("AWS_CA_BUNDLE") or str(get_cert_path(True))
        arguments = [str(CONNECTIONS_A_PROCESS), str(READ_TIMEOUT_SECONDS), authorities]
        command = [sys.executable, "-IS", worker.__file__, *arguments]
        while len(self._workers) * CONNECTIONS_A_PROCESS < self._window.size:
            self._workers.append(Child(self._context.system, command, self._answers))

    def _now(self) -> float:
        return self._context.system.monotonic_seconds()

    def _next(self) -> _Range | None:
        if self._again and self._again[0].due_seconds <= self._now():
            return heapq.heappop(self._again)
        return next(self._fresh, None)

    def _ranges(self, objects: Sequence[LargeObject]) -> Iterator[_Range]:
        for wanted in objects:
            copy = self._begin(wanted)
            self._open[str(copy.partial.path)] = copy
            there = sum(copy.partial.span(part)[1] for part in copy.partial.done)
            self._progress.add(there)
            if there:
                logger.info("%s: %d of %d bytes are there", wanted.key, there, wanted.size)
                self._advance(copy)
            missing = [part for part in range(copy.partial.count) if part not in copy.partial.done]
            yield from (_Range(0.0, copy, part) for part in missing)

    def _begin(self, wanted: LargeObject) -> _Copy:
        try:
            answer = self._context.aws.client("s3").head_object(Bucket=self._bucket, Key=wanted.key)
        except AWS_ERRORS as error:
            raise self._failure(wanted, f"cannot be copied: {error}") from error
        if answer["ContentLength"] != wanted.size:
            raise self._damaged(wanted, f"{answer['ContentLength']} bytes, the index says {wanted.size}")
        origin = Origin(answer["ETag"], wanted.size, PART_BYTES, self._boot_id)
        try:
            partial = Partial(self._context.system, self._directory, Path(wanted.key).name, origin)
        except OSError as error:
            raise self._cannot_write(error.strerror or str(error), full=error.errno == errno.ENOSPC) from error
        return _Copy(wanted, partial)

    def _ask(self, asked: _Range, child: Child) -> None:
        copy = asked.copy
        first, count = copy.partial.span(asked.part)
        headers = {"Range": f"bytes={first}-{first + count - 1}", "If-Match": copy.partial.origin.etag}
        try:
            url, headers = self._context.aws.signed_get(self._bucket, copy.wanted.key, headers)
        except AWS_ERRORS as error:
            raise self._failure(copy.wanted, f"no request can be signed: {error}") from error
        self._count += 1
        self._asked[self._count] = asked
        asked.attempts += 1
        child.asked += 1
        task = {"id": self._count, "url": url, "headers": headers, "path": str(copy.partial.path)}
        child.send({**task, "first": first, "count": count})

    def _wait(self, deadline: float) -> None:
        """Take one answer, or see a range come due."""
        until = min([self._again[0].due_seconds, deadline] if self._again else [deadline])
        try:
            child, answer = self._answers.get(timeout=max(0.0, until - self._now()))
        except queue.Empty:
            if self._now() >= deadline:
                raise StepError(
                    f"s3://{self._bucket}: the copy took longer than boot_timeout_seconds",
                    remedy="see how fast the progress events say it was, or raise node.supervise.boot_timeout_seconds",
                ) from None
            return
        if answer is None:
            raise StepError(
                f"{' '.join(child.command[:3])}: ended in the middle of the copy",
                remedy="see what it wrote to standard error, and whether memory ran out; then boot again",
            )
        if child is self._hashing:
            self._hashed(answer)
            return
        asked = self._asked.pop(answer["id"])
        child.asked -= 1
        if "problem" in answer:
            self._failed(asked, answer)
            return
        count = asked.copy.partial.span(asked.part)[1]
        self._window.came(count, self._now())
        asked.copy.partial.record(asked.part)
        self._progress.add(count, came=True)
        self._advance(asked.copy)

    def _advance(self, copy: _Copy) -> None:
        """Have the hash follow, or finish the file."""
        if copy.wanted.hashed:
            ready, path = copy.partial.front_bytes(), str(copy.partial.path)
            if ready > copy.told_bytes:
                copy.told_bytes = ready
                self._hashing.send({"path": path, "size": copy.wanted.size, "ready": ready})
        elif copy.partial.is_whole():
            self._finish(copy, None)

    def _hashed(self, answer: Mapping[str, Any]) -> None:
        copy = self._open[answer["path"]]
        if "problem" in answer:
            raise StepError(
                f"{answer['path']}: cannot be hashed: {answer['problem']}",
                remedy="install blake3 for the training interpreter, and name it in node.python.packages",
            )
        self._finish(copy, answer["hash"])

    def _finish(self, copy: _Copy, digest: str | None) -> None:
        del self._open[str(copy.partial.path)]
        self._finished(Path(copy.wanted.key).name, digest)
        copy.partial.finish(self._directory / copy.wanted.file)

    def _failed(self, asked: _Range, answer: Mapping[str, Any]) -> None:
        """Ask again later, or say why not.

        Raises:
            StepError: Asking again does not help.
        """
        wanted, problem, status = asked.copy.wanted, answer["problem"], answer.get("status")
        if "errno" in answer:
            raise self._cannot_write(problem, full=answer["errno"] in _FULL)
        if status == 412:
            asked.copy.partial.discard()
            raise self._damaged(wanted, "is another object than when its copy began (its ETag changed)")
        if answer.get("code") in _LASTING or status == 404 or asked.attempts >= ATTEMPTS:
            first, _ = asked.copy.partial.span(asked.part)
            problem = f"{problem} {answer.get('code') or ''}".rstrip()
            raise self._failure(
                wanted, f"cannot be copied: {problem}, at byte {first}, after {asked.attempts} attempts"
            )
        if status in (429, 503):
            self._window.refused(self._now())
        longest = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**asked.attempts)
        asked.due_seconds = self._now() + random.uniform(0, longest)  # noqa: S311 no secret
        logger.warning("%s: part %d: %s; is asked for again", wanted.key, asked.part, problem)
        heapq.heappush(self._again, asked)

    def _failure(self, wanted: LargeObject, what: str) -> StepError:
        return StepError(
            f"s3://{self._bucket}/{wanted.key}: {what}",
            remedy="is the object there? may the role read it? does the endpoint answer? then boot again: what was "
            "copied is kept",
        )

    def _damaged(self, wanted: LargeObject, what: str) -> StepError:
        return StepError(f"s3://{self._bucket}/{wanted.key}: {what}", remedy=_DAMAGED)

    def _cannot_write(self, problem: str, *, full: bool) -> StepError:
        if full:
            remedy = "raise node.root_volume.gib, or use a smaller dataset"
            return StepError(f"{self._directory}: the disk is full: {problem}", remedy=remedy)
        return StepError(f"{self._directory}: cannot be written: {problem}", remedy="check the disk")
