"""The records of a run's jobs, in a folder that all nodes share.

runs/<run>/job.json                 the job document, written by `trainstack up`
runs/<run>/run.json                 the trainer's configuration
runs/<run>/stopped                  `trainstack stop`: no job trains
runs/<run>/finished.json, failed.json            the end of the run
runs/<run>/successors/<job id>      number of the job that continues a job
runs/<run>/generations/<number %08d>/            one launch of the trainers
    claim.json                      the job and the nodes of the launch
    stop                            a request to save and stop: its reason
    stopping-<node>.json            a node that is stopping, and its reason
    leaving-<node>.json             a node with a spot interruption notice
    unhealthy-<node>.json           a node with faults, which did not start trainers
    outcomes/, metrics.jsonl        written by the trainer (docs/architecture.md, section 6)
    failed-<node>.json              a node whose trainers failed; srun then sends SIGTERM to the others
    end.json                        the decision about the next action
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
CONTINUE_BY = ("resubmit", "requeue", "spare")


class RecordError(Exception):
    """A record is missing or invalid."""


@dataclass(frozen=True)
class JobDocument:
    """The settings of a run's jobs.

    Attributes:
        folder: Folder of the run's records, `<directory>/runs/<run>`.
        script: The job script with which successors are submitted.
        array_index: Index in the sweep's job array; None for a run outside a sweep.
        dataset: Dataset folder on the nodes.
        checkpoints: Checkpoint store.
        fabric: `efa` or `tcp`.
    """

    name: str
    run: str
    folder: str
    script: str
    array_index: int | None
    nodes: int
    min_nodes: int
    processes_per_node: int
    gpus: int
    interpreter: str
    dataset: str
    checkpoints: str
    fabric: str
    launch: str
    continue_by: str
    max_failures: int
    signal_seconds: int
    watch_spot_notices: bool
    health_check: bool
    region: str = ""
    partition: str = ""
    instance_type: str = ""
    schema_version: int = SCHEMA_VERSION

    def to_text(self) -> str:
        """Return the document as JSON."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


def read_document(path: Path) -> JobDocument:
    """Read a job document.

    Raises:
        RecordError: The file cannot be read, or has another schema.
    """
    values = read_json(path)
    if values is None:
        raise RecordError(f"{path}: does not exist; submit the run with `trainstack up`")
    known = {each.name for each in fields(JobDocument)}
    version = values.get("schema_version")
    if version != SCHEMA_VERSION or set(values) != known:
        found = ", ".join(sorted(set(values) ^ known)) or f"schema_version {version}"
        raise RecordError(f"{path}: {found}: written by another version; submit the run again with `trainstack up`")
    return JobDocument(**values)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON object, or None if the file does not exist.

    Raises:
        RecordError: The file is not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise RecordError(f"{path}: not a JSON object")
    return value


def write_json(path: Path, **values: Any) -> None:
    """Write a JSON object atomically, with the current time."""
    write_text(path, json.dumps({**values, "unix_seconds": time.time()}) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        if temporary.exists():
            temporary.unlink()
        raise


class Generations:
    """The generations of a run. Creating a generation's folder claims its number, even on network file systems."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "generations"

    def folder(self, number: int) -> Path:
        """Return a generation's folder."""
        return self._folder / f"{number:08d}"

    def numbers(self) -> list[int]:
        """Return the claimed numbers, in order."""
        try:
            return sorted(int(each.name) for each in self._folder.iterdir() if each.name.isdecimal())
        except FileNotFoundError:
            return []

    def claim(self, **values: Any) -> int:
        """Claim the next number, and store the claim's values. Two jobs never claim the same number."""
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            number = max(self.numbers(), default=0) + 1
            try:
                self.folder(number).mkdir()
            except FileExistsError:
                continue
            (self.folder(number) / "outcomes").mkdir()
            write_json(self.folder(number) / "claim.json", **values)
            return number

    def outcomes(self, number: int) -> dict[int, dict[str, Any]]:
        """Return each rank's outcome. An unreadable file counts as missing, as if the rank had been killed."""
        found = {}
        for path in sorted((self.folder(number) / "outcomes").glob("rank-*.json")):
            try:
                outcome = read_json(path)
            except RecordError:
                continue
            if outcome is not None and isinstance(outcome.get("rank"), int):
                found[outcome["rank"]] = outcome
        return found

    def marked(self, number: int, kind: str) -> dict[str, dict[str, Any]]:
        """Return the nodes with a record `<kind>-<node>.json` in a generation, with the contents."""
        found = {}
        for path in sorted(self.folder(number).glob(f"{kind}-*.json")):
            try:
                found[path.stem[len(kind) + 1 :]] = read_json(path) or {}
            except RecordError:
                found[path.stem[len(kind) + 1 :]] = {}
        return found

    def end(self, number: int) -> dict[str, Any] | None:
        """Return the decision that followed a generation, or None if its job did not make one."""
        return read_json(self.folder(number) / "end.json")
