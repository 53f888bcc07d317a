"""Writes a plan's files to the shared folder, and reads the records of its runs."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.slurm.decide import newest_checkpoint
from bootstrap.slurm.records import Generations, RecordError, read_json, write_json, write_text
from trainstack.session import FAILED, CommandError
from trainstack.slurm.plan import Member, Plan, bundle
from trainstack.slurm.script import script_text

TAIL_BYTES = 256 * 1024


@dataclass(frozen=True)
class MemberRecords:
    """The contents of one run's records.

    Attributes:
        generation: Newest generation; 0 before the first.
        nodes: Nodes of the newest generation.
        end: `finished` or `failed`; empty if the run has not ended.
        message: Message of the end, or of the newest decision.
        cause: Cause of the newest decision; empty before the first.
        failures: Consecutive failures.
        metrics: Newest `step` record; empty before the first.
    """

    run: str
    generation: int
    nodes: tuple[str, ...]
    is_stopped: bool
    end: str
    message: str
    cause: str
    failures: int
    checkpoint_step: int | None
    steps_total: int | None
    metrics: Mapping[str, Any]


def write_files(plan: Plan) -> None:
    """Write the code, the configurations, the job documents and the job script.

    Raises:
        CommandError: The folder cannot be written.
    """
    try:
        Path(plan.folder, "log").mkdir(parents=True, exist_ok=True)
        _unpack(plan)
        for member in plan.members:
            folder = Path(member.document.folder)
            write_text(folder / "run.json", member.config_text)
            write_text(folder / "job.json", member.document.to_text())
        write_text(Path(plan.script), script_text(plan))
        Path(plan.script).chmod(0o755)
    except OSError as error:
        raise CommandError(
            FAILED, f"slurm.directory: {error.filename or plan.slurm.directory}: {error.strerror}; use a shared folder "
            "that this machine can write"
        ) from error  # fmt: skip


def _unpack(plan: Plan) -> None:
    """Unpack the code bundle. The folder's name is the bundle's digest, so an existing folder is complete and valid."""
    target = Path(plan.code)
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=".unpacking-"))
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            zipfile.ZipFile(bundle(plan.config, Path(folder)).path) as archive,
        ):
            archive.extractall(temporary)
        temporary.chmod(0o755)
        if not target.is_dir():
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_records(member: Member) -> MemberRecords:
    """Read a run's records.

    Raises:
        CommandError: A record is damaged.
    """
    folder = Path(member.document.folder)
    generations = Generations(folder)
    try:
        numbers = generations.numbers()
        newest = max(numbers, default=0)
        claim = (read_json(generations.folder(newest) / "claim.json") or {}) if newest else {}
        ends = {name: read_json(folder / f"{name}.json") for name in ("finished", "failed")}
        decision = next((end for end in map(generations.end, reversed(numbers)) if end is not None), {})
        end = next((name for name, value in ends.items() if value is not None), "")
        metrics, start, checkpoint = _metrics(generations, numbers)
    except (RecordError, OSError) as error:
        raise CommandError(FAILED, f"{error}; the run's records are damaged") from error
    reported = [*(generations.outcomes(newest).values() if newest else ()), decision, {"checkpoint_step": checkpoint}]
    return MemberRecords(
        run=member.run,
        generation=newest,
        nodes=tuple(claim.get("nodes", ())),
        is_stopped=(folder / "stopped").exists(),
        end=end,
        message=str((ends.get(end) or decision).get("message", "")),
        cause=str(decision.get("cause", "")),
        failures=int(decision.get("failures", 0)),
        checkpoint_step=newest_checkpoint(reported),
        steps_total=start.get("steps_total", member.steps),
        metrics=metrics,
    )


def _metrics(generations: Generations, numbers: list[int]) -> tuple[dict[str, Any], dict[str, Any], int | None]:
    """Return the newest `step` record, the newest `start` record, and the step of the newest checkpoint."""
    step: dict[str, Any] = {}
    start: dict[str, Any] = {}
    checkpoint: int | None = None
    for number in reversed(numbers):
        path = generations.folder(number) / "metrics.jsonl"
        try:
            with path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = file.read().splitlines()
        except FileNotFoundError:
            continue
        for line in reversed(lines):
            try:
                record = json.loads(line)
            except ValueError:  # the first line of the tail, or one that is being written
                continue
            if not step and record.get("record") == "step":
                step = record
            elif not start and record.get("record") == "start":
                start = record
            elif checkpoint is None and record.get("record") == "checkpoint":
                checkpoint = record.get("step")
        if step:
            break
    return step, start, checkpoint


def request_stop(plan: Plan, requested_by: str) -> None:
    """Write the marks with which jobs stop, and with which later jobs do not train."""
    for member in plan.members:
        write_json(Path(member.document.folder, "stopped"), requested_by=requested_by)


def allow(plan: Plan) -> None:
    """Remove the marks of a stop and of a failure, so that the next job trains. Earlier failures do not count."""
    for member in plan.members:
        folder = Path(member.document.folder)
        newest = max(Generations(folder).numbers(), default=0)
        (folder / "stopped").unlink(missing_ok=True)
        if (folder / "failed.json").exists():
            write_json(folder / "resumed.json", generation=newest)
            (folder / "failed.json").unlink()
