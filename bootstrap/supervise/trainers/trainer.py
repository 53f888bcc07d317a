"""One generation's trainers on this node: start, stop and save requests, monitoring, and termination."""

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

from bootstrap.layout import TRAINER_MARK
from bootstrap.supervise.membership.records import GenerationOutcome, GenerationRecord
from bootstrap.supervise.run_status import Progress
from bootstrap.supervise.situation import Result
from bootstrap.supervise.trainers import guardian
from bootstrap.supervise.trainers.dumps import dump
from bootstrap.supervise.trainers.launch import EXITS
from bootstrap.supervise.trainers.output import Output, OutputReader
from bootstrap.supervise.trainers.standby import STANDBY_LOG
from bootstrap.system import System

logger = logging.getLogger(__name__)

HANDOVER, FORMED, HOLD = "generation.json", "formed", "hold"
"""The file that passes the next generation to the ranks, the folder with the ranks' confirmations, and the file that
asks ranks whose collective has failed to wait for the next generation."""
LOG_TAIL_BYTES = 4000
# Time for the other ranks to write their outcomes after the first rank fails.
SIBLING_GRACE_SECONDS = 5.0
# Time for the processes to exit after all ranks have written their outcomes.
EXIT_GRACE_SECONDS = 10.0
KILL_LIMIT_SECONDS = 10.0

WarmStart = Callable[[Path, Path], "subprocess.Popen[bytes] | None"]
"""Starts the trainers from a standby process, given a directory and a log. Returns their guardian or None."""


def handover_text(record: GenerationRecord, rank: int | None) -> str:
    """Return a handover as JSON (training/process/reform/handover.py). `rank` is None if the record is without it."""
    return json.dumps(
        {
            "schema_version": 1,
            "generation": record.generation,
            "nodes": len(record.members),
            "node_rank": rank,
            "survivors": record.survivors,
            "planned": record.planned,
            "master_address": record.master_address,
            "master_port": record.master_port,
        }
    )


class Trainer:
    """One generation's processes on this node. This class is not thread-safe."""

    def __init__(self, system: System, directory: Path, ranks: Sequence[int], generation: int) -> None:
        self._system = system
        self._directory = directory
        self._ranks = self._launched_ranks = tuple(ranks)
        self._generation = generation
        self._pending: tuple[int, tuple[int, ...]] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._metrics_offset = 0
        self._grace_until: float | None = None
        self._killed: Result | None = None
        self.step = 0
        self._reported_checkpoint_step = 0
        self.progress = Progress()
        self._output = OutputReader(self.log)

    @property
    def saved_step(self) -> int:
        """Return the step of the newest checkpoint according to the records and outcomes, or 0 if there is none.

        This includes the checkpoint that the generation resumed from: a writer that outlived its trainers may have
        saved it.
        """
        recorded = self.progress.checkpoint()
        return max(self._reported_checkpoint_step, 0 if recorded is None else recorded.step)

    @property
    def log(self) -> Path:
        """Return the file with the trainers' standard output and error."""
        return self._directory / "trainer.log"

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        config: Mapping[str, Any],
        warm_start: WarmStart | None = None,
    ) -> None:
        """Start the processes under a guardian, in a new run directory.

        Args:
            command: The launcher's command line.
            environment: Environment for all processes.
            config: The trainer's configuration.
            warm_start: Alternative to `command` that is tried first.
        """
        if self._directory.exists():  # left behind by an earlier supervisor: a stop file in it would end the trainer
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
        """Request that the ranks agree on a step, save and exit, either immediately or in time for the deadline."""
        flag = {"reason": reason, "deadline_unix_seconds": deadline_unix, "train_on": train_on}
        self._system.write_atomic(self._directory / "stop", json.dumps(flag))

    def request_save(self) -> None:
        """Request an extra checkpoint from the ranks."""
        self._system.write_atomic(self._directory / "save", "{}")

    def hand_over(self, record: GenerationRecord, rank: int | None) -> None:
        """Request that the ranks switch to another generation in place.

        Args:
            record: The generation.
            rank: This node's rank. None: with a planned record, this node leaves; otherwise, its ranks are fenced.
        """
        if rank is not None:
            count = len(self._ranks)
            self._pending = record.generation, tuple(range(rank * count, (rank + 1) * count))
        self._directory.mkdir(parents=True, exist_ok=True)
        self._system.write_atomic(self._directory / HANDOVER, handover_text(record, rank))

    def hold(self, is_needed: bool) -> None:
        """Ask the ranks to wait for the next generation after a failed collective, or withdraw the request."""
        if is_needed:
            self._system.write_atomic(self._directory / HOLD, "{}")
        else:
            (self._directory / HOLD).unlink(missing_ok=True)

    def formed(self) -> int | None:
        """Return the generation of the ranks, or None if one of them is not in its training loop or cannot switch.

        If it is the requested generation, the ranks' outcomes are read from that generation from now on.
        """
        found = set()
        for local in range(len(self._launched_ranks)):
            text = self._system.read(self._directory / FORMED / f"local-{local:02d}.json")
            try:
                found.add(int(json.loads(text)["generation"]) if text is not None else None)
            except (ValueError, RecursionError, KeyError, TypeError):  # written by the user's code
                found.add(None)
        generation = found.pop() if len(found) == 1 else None
        if self._pending is not None and generation == self._pending[0]:
            (self._generation, self._ranks), self._pending = self._pending, None
        return generation

    def kill(self, outcome: GenerationOutcome, message: str) -> None:
        """Dump the ranks' state and kill every process. `poll` then returns the given outcome."""
        dump(self._system, self._directory)
        self._end()
        self._killed = Result(outcome, self._last_step(self._outcomes()), message)

    def poll(self) -> Result | None:
        """Return the generation's result on this node, or None while a process is running.

        The ranks' outcome files take precedence, because they are more precise than exit codes. The launcher does not
        terminate the other ranks when one exits, so this method does so if that rank did not finish or stop.
        """
        if self._killed is not None:
            return self._killed
        assert self._process is not None
        exits = self._exits()  # before the outcomes, which a rank writes before it exits
        outcomes = self._outcomes()
        exit_code = self._process.poll()
        killed = sorted(rank for rank, code in exits.items() if code < 0 and rank not in outcomes)
        if killed and self.formed() is not None:
            self._close()  # without waiting: the other nodes wait for this result
            codes = {rank: exits[rank] for rank in killed}
            return Result("killed", self._last_step(outcomes), f"ranks {killed} were killed (exit codes {codes})")
        if exit_code is None:
            if not self._is_overdue(outcomes, exits):
                return None
            self._end()
            outcomes = self._outcomes()
        return self._result(outcomes, exit_code)

    def new_records(self) -> list[dict[str, Any]]:
        """Return the metric records that rank 0 has written since the last call."""
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
            except (ValueError, RecursionError):
                logger.warning("%s: not JSON: %r", path, line[:200])
                continue
            if isinstance(record, dict):
                records.append(record)
                self._note(record)
        return records

    def new_output(self, now: float, *, is_last: bool) -> Output | None:
        """Return the trainers' output since the last call. See OutputReader.read."""
        return self._output.read(now, is_last=is_last)

    def log_tail(self) -> str:
        """Return the end of the trainers' log."""
        try:
            with self.log.open("rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - LOG_TAIL_BYTES))
                return stream.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _standby_log(self) -> str:
        """Return the log of a standby that exited before it became the launcher."""
        return self._system.read(self._directory / STANDBY_LOG) or ""

    def _note(self, record: Mapping[str, Any]) -> None:
        self.progress.note(record)
        step = record.get("step")
        if isinstance(step, int):
            self.step = max(self.step, step)

    def _is_overdue(self, outcomes: Mapping[int, Mapping[str, Any]], exits: Mapping[int, int]) -> bool:
        """Return True if, according to the ranks' outcomes and exits, the processes should have exited by now."""
        complete = len(outcomes) == len(self._ranks)
        in_order = all(each["outcome"] in ("finished", "stopped") for each in outcomes.values())
        if not complete and in_order and not exits.keys() - outcomes.keys():
            self._grace_until = None
            return False
        now = self._system.monotonic_seconds()
        if self._grace_until is None:
            self._grace_until = now + (EXIT_GRACE_SECONDS if complete else SIBLING_GRACE_SECONDS)
        return now > self._grace_until

    def _outcomes(self) -> dict[int, Mapping[str, Any]]:
        """Return the outcomes of this node's ranks in the generation that they have formed."""
        found: dict[int, Mapping[str, Any]] = {}
        parts = [(self._generation, self._ranks), *([] if self._pending is None else [self._pending])]
        for generation, ranks in parts:
            for local, rank in enumerate(ranks):
                text = self._system.read(self._directory / "outcomes" / f"rank-{rank:05d}.json")
                if text is None:
                    continue
                try:
                    value = json.loads(text)
                except (ValueError, RecursionError):  # being written, or written by other code
                    continue
                if isinstance(value, dict) and value.get("generation") == generation and "outcome" in value:
                    found[self._ranks[local]] = value
        return found

    def _exits(self) -> dict[int, int]:
        """Return the exit codes of the ranks that have exited, from the launcher's records."""
        found: dict[int, int] = {}
        for rank, launched in zip(self._ranks, self._launched_ranks, strict=True):
            text = self._system.read(self._directory / EXITS / f"rank-{launched:05d}.json")
            with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):  # written by the user's code
                found[rank] = int(json.loads(text)["exit_code"]) if text is not None else found[rank]
        return found

    def _result(self, outcomes: Mapping[int, Mapping[str, Any]], exit_code: int | None) -> Result:
        step = self._last_step(outcomes)
        reported = [each["outcome"] for each in outcomes.values()]
        if "bad_configuration" in reported:
            return Result("bad_configuration", step, self._message(outcomes, "bad_configuration"))
        if "superseded" in reported:
            return Result("lost_peer", step, f"superseded: {self._message(outcomes, 'superseded')}")
        if "not_reformed" in reported:
            return Result("lost_peer", step, self._message(outcomes, "not_reformed"))
        if "failed" in reported:
            return Result("failed", step, self._message(outcomes, "failed"))
        if len(reported) < len(self._ranks):
            missing = sorted(set(self._ranks) - set(outcomes))
            tail = (self.log_tail() or self._standby_log())[-2000:]
            codes = {rank: code for rank, code in self._exits().items() if rank in missing}
            how = f"exit codes {codes}" if codes else f"exit code {exit_code}"
            return Result("failed", step, f"ranks {missing} exited without an outcome ({how}): {tail}")
        if all(outcome == "finished" for outcome in reported):
            return Result("finished", step, "")
        return Result("stopped", step, self._message(outcomes, "stopped"))

    def _last_step(self, outcomes: Mapping[int, Mapping[str, Any]]) -> int:
        for each in outcomes.values():
            saved, step = each.get("checkpoint_step"), each.get("step")
            if isinstance(saved, int):
                self._reported_checkpoint_step = max(self._reported_checkpoint_step, saved)
            if isinstance(step, int):
                self.step = max(self.step, step)
        return self.step

    def _message(self, outcomes: Mapping[int, Mapping[str, Any]], outcome: str) -> str:
        for rank, each in outcomes.items():
            if each["outcome"] == outcome:
                return f"rank {rank}: {each.get('message') or ''}"
        return ""

    def finish(self) -> None:
        """Wait until all processes have exited, which `poll` may have requested."""
        if self._process is not None and self._process.poll() is None:
            self._end()

    def _close(self) -> None:
        assert self._process is not None
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()  # makes the guardian kill its descendants

    def _end(self) -> None:
        assert self._process is not None
        self._close()
        try:
            self._process.wait(KILL_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            logger.error("generation %d: the guardian did not exit; killing it", self._generation)
            self._process.kill()
            self._process.wait()


def kill_left_over(root: Path) -> list[int]:
    """Kill trainers that an earlier supervisor on this node left behind. Return their process ids.

    An environment variable identifies them, but only Linux exposes it. On other systems, only the guardian kills them.
    """
    mark = f"{TRAINER_MARK}={root}".encode()
    killed: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # the process has exited or belongs to another user
            continue
        if mark in environment and int(entry.name) != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
    return killed


def remove_old_directories(parent: Path, keep: int) -> None:
    """Remove the run directories of all but the last `keep` generations."""
    names = [entry for entry in parent.glob("gen-*") if entry.name[4:].isdigit()] if parent.is_dir() else []
    for directory in sorted(names, key=lambda entry: int(entry.name[4:]))[:-keep]:
        shutil.rmtree(directory, ignore_errors=True)
