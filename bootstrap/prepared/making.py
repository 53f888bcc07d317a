"""Makes prepared data on this node: fetches the source, runs the function, publishes what it wrote."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from bootstrap.aws import AWS_ERRORS
from bootstrap.documents import Prepare, RunDocument
from bootstrap.errors import CommandError, LastingError, StepError
from bootstrap.plan import Context
from bootstrap.prepared.claims import Claim, ClaimStore, place
from bootstrap.prepared.inputs import SourceObject, source_objects
from bootstrap.steps.interpreter import find_interpreter
from bootstrap.steps.transfer import SPARE_DISK_BYTES, copy_tree

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 30.0
ROOM_FACTOR = 3
"""Of the source's bytes, that must be free: the source, what is made of it, and its copy while it is staged."""
SHOWN_LINES = 8
PROGRAM_MARK = "TRAINSTACK_TRAINER_OF"
"""In the environment of what a supervisor left running, which its successor ends by it."""


class Making:
    """The work of one claim."""

    def __init__(
        self, context: Context, run: RunDocument, store: ClaimStore, claim: Claim, unwanted: Callable[[], bool]
    ) -> None:
        assert run.prepare is not None
        self._context = context
        self._run = run
        self._prepare: Prepare = run.prepare
        self._store = store
        self._claim = claim
        self._unwanted = unwanted
        self._work = context.layout.datasets / ".preparing"
        self._stage = ""
        self._started = self._beaten = self._reported = context.system.monotonic_seconds()

    def make(self, objects: Sequence[SourceObject]) -> None:
        """Make the data and commit them.

        Raises:
            LastingError: The function failed; the claim says so to all nodes.
            StepError: Something around it failed, or the node has other things to do; another claim may follow.
        """
        self._emit("started", source_objects=len(objects), source_bytes=sum(each.bytes for each in objects))
        try:
            self._do(objects)
        except LastingError as error:
            self._end("failed", f"{error}; {error.remedy}")
            raise
        except BaseException as error:
            self._end("released", str(error))
            raise
        finally:
            shutil.rmtree(self._work, ignore_errors=True)

    def _do(self, objects: Sequence[SourceObject]) -> None:
        shutil.rmtree(self._work, ignore_errors=True)  # of an earlier process on this machine
        source, target = self._work / "source", self._work / self._run.dataset
        for each in (source, target):
            each.mkdir(parents=True)
        self._check_disk(sum(each.bytes for each in objects))
        self._fetch(objects, source)
        self._enter("preparing")
        self._call(source, target)
        self._enter("publishing")
        self._publish(target)
        facts = {
            "function": self._prepare.function,
            "source": self._prepare.source,
            "options": dict(self._prepare.options),
            "bytes": _bytes_below(target),
            "instance_id": self._claim.instance_id,
            "unix_seconds": round(self._context.system.unix_seconds()),
        }
        if self._store.commit(self._claim.number, facts):
            self._emit("finished", seconds=self._seconds(), bytes=facts["bytes"])
        else:
            logger.warning("%s: another node's work was committed first, and counts", self._store.url)

    def _check_disk(self, source_bytes: int) -> None:
        needed, free = ROOM_FACTOR * source_bytes + SPARE_DISK_BYTES, self._context.system.free_bytes(self._work)
        if needed > free:
            raise LastingError(
                f"{self._work}: the disk is too small to prepare data: {needed} bytes needed ({ROOM_FACTOR} times the "
                f"source, and some), {free} free",
                remedy="raise node.root_volume.gib, take a type with local disks, or prepare less in a run",
            )

    def _fetch(self, objects: Sequence[SourceObject], source: Path) -> None:
        self._enter("fetching")
        bucket = self._context.node.dataset_bucket
        copy_tree(self._context, f"s3://{bucket}/{self._prepare.source}", source, self._meanwhile)
        s3 = self._context.aws.client("s3")
        same = source_objects(s3, bucket, self._prepare.source) == tuple(objects)
        sizes = {each.name: each.bytes for each in objects}
        if not same or sizes != {str(path.relative_to(source)): path.stat().st_size for path in _files_below(source)}:
            raise StepError(
                f"s3://{bucket}/{self._prepare.source}/: changed while it was fetched",
                remedy="let nothing write there while it is prepared; it is tried again with what is there then",
            )

    def _call(self, source: Path, target: Path) -> None:
        options = self._work / "options.json"
        self._context.system.write_atomic(options, json.dumps(dict(self._prepare.options)))
        arguments = ["--function", self._prepare.function, "--options", str(options)]
        command = self._training("prepare", *arguments, "--source", str(source), "--target", str(target))
        try:
            self._run_program(command)
        except CommandError as error:
            last = "\n".join(error.output_tail.strip().splitlines()[-SHOWN_LINES:])
            raise LastingError(
                f"training.prepare.function: {self._prepare.function}: {error.reason}: {last}",
                remedy="correct the function, its options or the source, and deploy; what changed is prepared anew. "
                f"To try the same again, change training.run, or remove {self._store.url}/claims/",
                exit_code=error.exit_code,
                output_tail=error.output_tail,
            ) from error

    def _publish(self, target: Path) -> None:
        name = place(self._claim.number)
        command = self._training("publish", "--input", str(target), "--output", self._store.url, "--name", name)
        try:
            self._run_program(command)
        except CommandError as error:
            raise StepError.from_command(
                error, message=f"{self._store.url}: cannot be written", remedy="see its last lines, and what S3 says"
            ) from error

    def _training(self, *arguments: str) -> list[str]:
        return [find_interpreter(self._context), "-m", "training", *arguments]

    def _run_program(self, command: Sequence[str]) -> None:
        region = self._context.node.region
        environment: Mapping[str, str] = {
            "PYTHONPATH": str(self._context.layout.code(self._run.code.sha256)),
            "PYTHONSAFEPATH": "1",  # not what lies in the working directory
            "AWS_REGION": region,
            "AWS_DEFAULT_REGION": region,
            PROGRAM_MARK: str(self._context.layout.root),
        }
        self._context.system.run(
            command,
            timeout_seconds=self._prepare.timeout_minutes * 60.0,
            environment=environment,
            meanwhile=self._meanwhile,
        )

    def _meanwhile(self) -> None:
        """Show that this node is alive, and see whether it should go on.

        Raises:
            StepError: It should not.
        """
        now = self._context.system.monotonic_seconds()
        if self._unwanted():
            raise StepError("the data are not prepared to the end: the run changed", remedy="none is needed")
        free = self._context.system.free_bytes(self._work)
        if free < SPARE_DISK_BYTES:
            raise LastingError(
                f"{self._work}: the disk is nearly full: {free} bytes free, with "
                f"{_bytes_below(self._work)} in use by the data that are prepared",
                remedy="raise node.root_volume.gib, take a type with local disks, or let the function write less",
            )
        if now - self._beaten >= self._context.node.supervise.heartbeat_seconds:
            self._beaten = now
            self._beat()
        if now - self._reported >= PROGRESS_SECONDS:
            self._reported = now
            self._emit("progress", seconds=self._seconds(), bytes_on_disk=_bytes_below(self._work))

    def _beat(self) -> None:
        try:
            newest = self._store.newest()
            if newest is None or newest.number > self._claim.number:
                taken_by = "nobody" if newest is None else newest.instance_id
                raise StepError(f"{self._store.url}: the work was taken over by {taken_by}", remedy="none is needed")
            self._claim = replace(self._claim, sequence=self._claim.sequence + 1)
            self._store.rewrite(self._claim)
        except AWS_ERRORS as error:  # the commit, too, is conditional: at worst the work is done twice
            logger.warning("%s: no heart-beat could be written: %s", self._store.url, error)

    def _end(self, state: Literal["released", "failed"], message: str) -> None:
        self._emit(state, message=message)
        try:
            newest = self._store.newest()
            if newest is not None and newest.number == self._claim.number:
                self._store.rewrite(replace(self._claim, state=state, message=message))
        except (StepError, *AWS_ERRORS) as error:  # the others will find the claim silent
            logger.warning("%s: the end of the work could not be written: %s", self._store.url, error)

    def _enter(self, stage: str) -> None:
        self._stage = stage
        self._emit("progress", seconds=self._seconds(), bytes_on_disk=_bytes_below(self._work))

    def _seconds(self) -> float:
        return round(self._context.system.monotonic_seconds() - self._started, 1)

    def _emit(self, state: str, **fields: object) -> None:
        stage = {"stage": self._stage} if self._stage else {}
        self._context.events.emit("data_preparation", state=state, place=self._store.url, **stage, **fields)


def _files_below(folder: Path) -> list[Path]:
    return [Path(parent) / name for parent, _, names in os.walk(folder) for name in names]


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in _files_below(folder):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:  # written to another name meanwhile
            continue
    return total
