"""The trainers of one generation on this node: started, asked to stop or save, watched, ended whole."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bootstrap.supervise import guardian
from bootstrap.supervise.dumps import dump
from bootstrap.supervise.launch import TRAINER_MARK
from bootstrap.supervise.records import GenerationOutcome
from bootstrap.supervise.situation import Result
from bootstrap.supervise.standby import STANDBY_LOG
from bootstrap.system import System

logger = logging.getLogger(__name__)

LOG_TAIL_BYTES = 4000
# After the first failed rank its siblings get so long to write what they know.
SIBLING_GRACE_SECONDS = 5.0
# All ranks have said how they ended: torchrun itself waits minutes for agents that may be gone.
EXIT_GRACE_SECONDS = 10.0
KILL_LIMIT_SECONDS = 10.0

WarmStart = Callable[[Path, Path], "subprocess.Popen[bytes] | None"]
"""Lets a standby become the trainers, in a directory, with a log; returns its guardian, None if there is no standby."""


class Trainer:
    """One generation's processes on this node; one thread uses it."""

    def __init__(self, system: System, directory: Path, ranks: Sequence[int], generation: int) -> None:
        self._system = system
        self._directory = directory
        self._ranks = tuple(ranks)
        self._generation = generation
        self._process: subprocess.Popen[bytes] | None = None
        self._metrics_offset = 0
        self._grace_until: float | None = None
        self._killed: Result | None = None
        self.step = 0
        self.saved_step = 0

    @property
    def log(self) -> Path:
        """What the trainers write to standard output and error."""
        return self._directory / "trainer.log"

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        config: Mapping[str, Any],
        warm_start: WarmStart | None = None,
    ) -> None:
        """Start the processes under a guardian, in a fresh run directory.

        Args:
            command: of torchrun.
            environment: of all processes.
            config: of the trainer.
            warm_start: starts them without `command`, if it can.
        """
        if self._directory.exists():  # what a supervisor before this one left: a stop flag in it would end the trainer
            shutil.rmtree(self._directory)
        self._directory.mkdir(parents=True)
        self._system.write_atomic(self._directory / "run.json", json.dumps(config, indent=2))
        self._process = warm_start(self._directory, self.log) if warm_start is not None else None
        if self._process is not None:
            return
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=self._directory,
                start_new_session=True,
            )

    def request_stop(self, reason: str, deadline_unix: float, *, train_on: bool) -> None:
        """Ask the ranks to agree on a step, save and end; at once, or in time for the deadline."""
        flag = {"reason": reason, "deadline_unix_seconds": deadline_unix, "train_on": train_on}
        self._system.write_atomic(self._directory / "stop", json.dumps(flag))

    def request_save(self) -> None:
        """Ask the ranks for an extra checkpoint."""
        self._system.write_atomic(self._directory / "save", "{}")

    def kill(self, outcome: GenerationOutcome, message: str) -> None:
        """Ask the ranks where they stand, and end every process; the result is then the given one."""
        dump(self._system, self._directory)
        self._end()
        self._killed = Result(outcome, self._last_step(self._outcomes()), message)

    def poll(self) -> Result | None:
        """Return how the generation ended on this node, or None as long as a process runs.

        The ranks' own outcome files count; torchrun's exit code says nothing that they do not say better.
        """
        if self._killed is not None:
            return self._killed
        assert self._process is not None
        outcomes = self._outcomes()
        exit_code = self._process.poll()
        if exit_code is None:
            if not self._lingers(outcomes):
                return None
            self._end()
            outcomes = self._outcomes()
        return self._result(outcomes, exit_code)

    def new_records(self) -> list[dict[str, Any]]:
        """Return the metrics that rank 0 has written since the last call."""
        path = self._directory / "metrics.jsonl"
        try:
            with path.open("rb") as stream:
                stream.seek(self._metrics_offset)
                written = stream.read()
        except FileNotFoundError:
            return []
        complete = written[: written.rfind(b"\n") + 1]
        self._metrics_offset += len(complete)
        records: list[dict[str, Any]] = []
        for line in complete.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                logger.warning("%s: not JSON: %r", path, line[:200])
                continue
            if isinstance(record, dict):
                records.append(record)
                self._note(record)
        return records

    def log_tail(self) -> str:
        """Return the last lines that the trainers wrote."""
        try:
            with self.log.open("rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - LOG_TAIL_BYTES))
                return stream.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _standby_log(self) -> str:
        """Return what a standby wrote that ended before it was torchrun."""
        return self._system.read(self._directory / STANDBY_LOG) or ""

    def _note(self, record: Mapping[str, Any]) -> None:
        step, kind = record.get("step"), record.get("record")
        if isinstance(step, int):
            self.step = max(self.step, step)
            # What it begins from was saved too: by a writer that outlived its trainers, say, and told nobody.
            saved = step if kind == "checkpoint" else record.get("resumed_from_step") if kind == "start" else None
            self.saved_step = max(self.saved_step, saved or 0)

    def _lingers(self, outcomes: Mapping[int, Mapping[str, Any]]) -> bool:
        """Return whether the processes should have ended by now, judging by what the ranks wrote."""
        everyone = len(outcomes) == len(self._ranks)
        if not everyone and all(each["outcome"] in ("finished", "stopped") for each in outcomes.values()):
            self._grace_until = None
            return False
        now = self._system.monotonic_seconds()
        if self._grace_until is None:
            self._grace_until = now + (EXIT_GRACE_SECONDS if everyone else SIBLING_GRACE_SECONDS)
        return now > self._grace_until

    def _outcomes(self) -> dict[int, Mapping[str, Any]]:
        found: dict[int, Mapping[str, Any]] = {}
        for rank in self._ranks:
            text = self._system.read(self._directory / "outcomes" / f"rank-{rank:05d}.json")
            if text is None:
                continue
            try:
                value = json.loads(text)
            except ValueError:  # being written
                continue
            if isinstance(value, dict) and value.get("generation") == self._generation and "outcome" in value:
                found[rank] = value
        return found

    def _result(self, outcomes: Mapping[int, Mapping[str, Any]], exit_code: int | None) -> Result:
        step = self._last_step(outcomes)
        said = [each["outcome"] for each in outcomes.values()]
        if "bad_configuration" in said:
            return Result("bad_configuration", step, self._message(outcomes, "bad_configuration"))
        if "superseded" in said:
            return Result("lost_peer", step, f"superseded: {self._message(outcomes, 'superseded')}")
        if "failed" in said:
            return Result("failed", step, self._message(outcomes, "failed"))
        if len(said) < len(self._ranks):
            silent = sorted(set(self._ranks) - set(outcomes))
            tail = (self.log_tail() or self._standby_log())[-2000:]
            return Result("failed", step, f"ranks {silent} ended without a word (exit code {exit_code}): {tail}")
        if all(outcome == "finished" for outcome in said):
            return Result("finished", step, "")
        return Result("stopped", step, self._message(outcomes, "stopped"))

    def _last_step(self, outcomes: Mapping[int, Mapping[str, Any]]) -> int:
        for each in outcomes.values():
            saved, step = each.get("checkpoint_step"), each.get("step")
            if isinstance(saved, int):
                self.saved_step = max(self.saved_step, saved)
            if isinstance(step, int):
                self.step = max(self.step, step)
        return self.step

    def _message(self, outcomes: Mapping[int, Mapping[str, Any]], outcome: str) -> str:
        for rank, each in outcomes.items():
            if each["outcome"] == outcome:
                return f"rank {rank}: {each.get('message') or ''}"
        return ""

    def _end(self) -> None:
        assert self._process is not None
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()  # the guardian's sign to kill everything
        try:
            self._process.wait(KILL_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            logger.error("generation %d: the guardian does not end; killed", self._generation)
            self._process.kill()
            self._process.wait()


def kill_left_over(root: Path) -> list[int]:
    """Kill the trainers that an earlier supervisor of this node left behind; returns their process ids.

    They are known by the mark in their environment, which only Linux shows. Elsewhere the guardian alone must do.
    """
    wanted = f"{TRAINER_MARK}={root}".encode()
    killed: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended, or it belongs to somebody else
            continue
        if wanted in environment and int(entry.name) != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
    return killed


def remove_old_directories(folder: Path, keep: int) -> None:
    """Remove the run directories of all but the last `keep` generations."""
    names = [entry for entry in folder.glob("gen-*") if entry.name[4:].isdigit()] if folder.is_dir() else []
    for directory in sorted(names, key=lambda entry: int(entry.name[4:]))[:-keep]:
        shutil.rmtree(directory, ignore_errors=True)
