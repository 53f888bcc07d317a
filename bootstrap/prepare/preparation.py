"""Prepares data on this node: downloads the source, runs the function, and publishes its result."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from bootstrap.aws import AWS_ERRORS
from bootstrap.context import Context
from bootstrap.documents import Prepare, RunDocument
from bootstrap.errors import CommandError, PermanentError, StepError
from bootstrap.events.schema import DataPreparation
from bootstrap.fetch.transfer import SPARE_DISK_BYTES, download_tree
from bootstrap.interpreter import find_interpreter
from bootstrap.layout import TRAINER_MARK
from bootstrap.prepare.claims import MAX_MESSAGE_CHARACTERS, Claim, ClaimStore, directory_of
from bootstrap.prepare.inputs import SourceObject, source_objects

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 30.0
ROOM_FACTOR = 3
"""Required free space as a multiple of the source size, for the source, the result, and the result's staged copy."""
SHOWN_LINES = 8


class Preparation:
    """The work of one claim."""

    def __init__(
        self, context: Context, run: RunDocument, store: ClaimStore, claim: Claim, cancelled: Callable[[], bool]
    ) -> None:
        assert run.prepare is not None
        self._context = context
        self._run = run
        self._prepare: Prepare = run.prepare
        self._store = store
        self._claim = claim
        self._cancelled = cancelled
        self._work = context.layout.datasets / ".preparing"
        self._stage: Literal["fetching", "preparing", "publishing"] | None = None
        self._started = self._last_beat = self._last_report = context.system.monotonic_seconds()

    def run(self, objects: Sequence[SourceObject]) -> None:
        """Prepare the data and commit it.

        Raises:
            PermanentError: The function failed; the claim records it for all nodes.
            StepError: The preparation failed for another reason, or was cancelled; another claim may follow.
        """
        self._emit("started", source_objects=len(objects), source_bytes=sum(each.bytes for each in objects))
        try:
            self._run_stages(objects)
        except PermanentError as error:
            self._end("failed", f"{error}; {error.remedy}")
            raise
        except BaseException as error:
            self._end("released", str(error))
            raise
        finally:
            shutil.rmtree(self._work, ignore_errors=True)

    def _run_stages(self, objects: Sequence[SourceObject]) -> None:
        shutil.rmtree(self._work, ignore_errors=True)  # leftovers from an earlier process
        source, target = self._work / "source", self._work / self._run.dataset
        for each in (source, target):
            each.mkdir(parents=True)
        self._check_disk(sum(each.bytes for each in objects))
        self._fetch(objects, source)
        self._enter("preparing")
        self._call_function(source, target)
        self._enter("publishing")
        self._publish(target)
        size = _bytes_below(target)
        facts = {
            "function": self._prepare.function,
            "source": self._prepare.source,
            "options": dict(self._prepare.options),
            "bytes": size,
            "instance_id": self._claim.instance_id,
            "unix_seconds": round(self._context.system.unix_seconds()),
        }
        if self._store.commit(self._claim.number, facts):
            self._emit("finished", seconds=self._seconds(), bytes=size)
        else:
            logger.warning("%s: another node committed its data first", self._store.url)

    def _check_disk(self, source_bytes: int) -> None:
        needed, free = ROOM_FACTOR * source_bytes + SPARE_DISK_BYTES, self._context.system.free_bytes(self._work)
        if needed > free:
            raise PermanentError(
                f"{self._work}: not enough disk space for data preparation: {free} bytes free, {needed} needed "
                f"({ROOM_FACTOR} times the source, plus a reserve)",
                remedy="raise node.root_volume.gib, use an instance type with local disks, or prepare less data",
            )

    def _fetch(self, objects: Sequence[SourceObject], source: Path) -> None:
        self._enter("fetching")
        bucket = self._context.node.dataset_bucket
        download_tree(self._context, f"s3://{bucket}/{self._prepare.source}", source, self._on_tick)
        s3 = self._context.aws.client("s3")
        same = source_objects(s3, bucket, self._prepare.source, self._on_tick) == tuple(objects)
        sizes = {each.name: each.bytes for each in objects}
        if not same or sizes != {str(path.relative_to(source)): path.stat().st_size for path in _files_below(source)}:
            raise StepError(
                f"s3://{bucket}/{self._prepare.source}/: the objects changed during the download",
                remedy="do not write there while a node prepares the data; the node retries with the new objects",
            )

    def _call_function(self, source: Path, target: Path) -> None:
        options = self._work / "options.json"
        self._context.system.write_atomic(options, json.dumps(dict(self._prepare.options)))
        arguments = ["--function", self._prepare.function, "--options", str(options)]
        command = self._training("prepare", *arguments, "--source", str(source), "--target", str(target))
        try:
            self._run_program(command)
        except CommandError as error:
            last = "\n".join(error.output_tail.strip().splitlines()[-SHOWN_LINES:])
            raise PermanentError(
                f"training.prepare.function: {self._prepare.function}: {error.reason}: {last}",
                remedy="correct the function, its options or the source, and deploy; a node then prepares the data. "
                f"To retry without a change, set another training.run, or remove {self._store.url}/claims/",
                exit_code=error.exit_code,
                output_tail=error.output_tail,
            ) from error

    def _publish(self, target: Path) -> None:
        name = directory_of(self._claim.number)
        command = self._training(
            "publish", "--input", str(target), "--output", self._store.url, "--name", name, "--create"
        )
        try:
            self._run_program(command)
        except CommandError as error:
            raise StepError.from_command(
                error, message=f"{self._store.url}: cannot publish the data", remedy="see the output of the program"
            ) from error

    def _training(self, *arguments: str) -> list[str]:
        return [find_interpreter(self._context), "-m", "training", *arguments]

    def _run_program(self, command: Sequence[str]) -> None:
        region = self._context.node.region
        environment: Mapping[str, str] = {
            "PYTHONPATH": str(self._context.layout.code(self._run.code.sha256)),
            "PYTHONSAFEPATH": "1",  # do not import from the working directory
            "AWS_REGION": region,
            "AWS_DEFAULT_REGION": region,
            TRAINER_MARK: str(self._context.layout.root),
        }
        self._context.system.run(
            command,
            timeout_seconds=self._prepare.timeout_minutes * 60.0,
            environment=environment,
            on_tick=self._on_tick,
        )

    def _on_tick(self) -> None:
        """Check that the work should continue, and write heartbeats and progress events.

        Raises:
            StepError: The work must stop.
        """
        now = self._context.system.monotonic_seconds()
        if self._cancelled():
            raise StepError("data preparation was cancelled: the run changed", remedy="no action is needed")
        free = self._context.system.free_bytes(self._work)
        if free < SPARE_DISK_BYTES:
            raise PermanentError(
                f"{self._work}: the disk is nearly full: {free} bytes free; data preparation uses "
                f"{_bytes_below(self._work)}",
                remedy="raise node.root_volume.gib, use an instance type with local disks, or write less data",
            )
        if now - self._last_beat >= self._context.node.supervise.heartbeat_seconds:
            self._last_beat = now
            self._beat()
        if now - self._last_report >= PROGRESS_SECONDS:
            self._last_report = now
            self._emit_progress()

    def _beat(self) -> None:
        try:
            newest = self._store.newest()
            if newest is None or (newest.number > self._claim.number and newest.state != "released"):
                owner = "no node" if newest is None else newest.instance_id
                raise StepError(f"{self._store.url}: {owner} took over the work", remedy="no action is needed")
            self._claim = replace(self._claim, sequence=self._claim.sequence + 1)
            self._store.report(self._claim)
        except AWS_ERRORS as error:  # the commit is conditional, so at worst two nodes do the same work
            logger.warning("%s: cannot write the heartbeat: %s", self._store.url, error)

    def _end(self, state: Literal["released", "failed"], message: str) -> None:
        self._emit(state, message=message)
        try:
            newest = self._store.newest()
            if newest is not None and newest.number == self._claim.number:
                self._store.report(replace(self._claim, state=state, message=message[:MAX_MESSAGE_CHARACTERS]))
        except (StepError, *AWS_ERRORS) as error:  # the other nodes will notice the missing heartbeats
            logger.warning("%s: cannot record the end of the work: %s", self._store.url, error)

    def _enter(self, stage: Literal["fetching", "preparing", "publishing"]) -> None:
        self._stage = stage
        self._emit_progress()

    def _emit_progress(self) -> None:
        self._emit("progress", seconds=self._seconds(), bytes_on_disk=_bytes_below(self._work))

    def _seconds(self) -> float:
        return round(self._context.system.monotonic_seconds() - self._started, 1)

    def _emit(self, state: Literal["started", "progress", "finished", "released", "failed"], **keys: Any) -> None:
        self._context.events.emit(DataPreparation(state, self._store.url, self._stage, **keys))


def _files_below(directory: Path) -> list[Path]:
    return [Path(parent) / name for parent, _, names in os.walk(directory) for name in names]


def _bytes_below(directory: Path) -> int:
    total = 0
    for path in _files_below(directory):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:  # renamed or removed since the listing
            continue
    return total
