"""The engine `slurm`: the run's jobs on a Slurm cluster, and its records in the shared folder."""

from __future__ import annotations

import getpass
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bootstrap.slurm.commands import call
from bootstrap.slurm.records import RecordError, read_json, write_json
from trainstack.engines.engine import LogQuery, Submission, View
from trainstack.observe.why import Explanation
from trainstack.operate.waiting import Look, wait
from trainstack.session import FAILED, INVALID, CommandError
from trainstack.slurm import queue
from trainstack.slurm.files import MemberRecords, allow, read_records, request_stop, write_files
from trainstack.slurm.observation import RunStatus, explanation_of, status_of
from trainstack.slurm.plan import Plan
from trainstack.slurm.queue import Call, QueuedJob
from trainstack.slurm.script import submission_digest

STOP_SECONDS, START_SECONDS = 900.0, 600.0
POLL_SECONDS = 1.0
FOREVER = float("inf")


class SweepStatus:
    """The status of all runs of a sweep."""

    def __init__(self, name: str, members: Sequence[RunStatus]) -> None:
        self.name, self.members = name, members

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"engine": "slurm", "name": self.name, "members": [each.to_json() for each in self.members]}

    def lines(self) -> list[str]:
        """Return one line per run."""
        return [f"{self.name}  sweep of {len(self.members)} runs  engine slurm"] + [
            f"{each.run:<24} {each.line()}" for each in self.members
        ]


class SweepExplanation:
    """Why the runs of a sweep are not training."""

    def __init__(self, members: Sequence[tuple[str, Explanation]]) -> None:
        self._members = members

    def to_json(self) -> list[dict[str, Any]]:
        """Return JSON values."""
        return [{"run": run, **found.to_json()} for run, found in self._members]

    def lines(self) -> list[str]:
        """Return one line per run."""
        return [f"{run}: {line}" for run, found in self._members for line in found.lines()]


class SlurmEngine:
    """The jobs of one deployment file."""

    def __init__(self, plan: Plan, file: Path, run: Call = call) -> None:
        self._plan, self._file, self._run = plan, file, run

    def submit(self, submission: Submission) -> None:
        """Write the files and submit the jobs. After an edit, running jobs save and stop first."""
        if submission.stacks or submission.approved > 10:
            raise CommandError(INVALID, f"{self._file}: engine slurm has no stacks and no review; remove the options")
        jobs = queue.jobs(self._plan, self._run)
        digest = submission_digest(self._plan)
        if jobs and self._submitted() == digest:
            print(f"{self._file}: nothing to submit", file=sys.stderr)
        else:
            if jobs:
                print(f"{self._file}: has changed; the running jobs save and stop first", file=sys.stderr)
                self.stop(waits=True, as_json=False)
            write_files(self._plan)
            self._start(digest)
        if submission.follow:
            self._follow()
        found = self.observe()
        print(json.dumps(found.to_json()) if submission.as_json else "\n".join(found.lines()))
        failed = [each.run for each in self._members(found) if each.cause == "failed"]
        if failed:
            raise CommandError(FAILED, f"{', '.join(failed)}: failed; see `trainstack why {self._file}`")

    def observe(self) -> RunStatus | SweepStatus:
        """Return the run's status."""
        now = time.time()
        found = [status_of(self._plan.config.name, records, jobs, now) for records, jobs in self._seen()]
        return SweepStatus(self._plan.config.name, found) if self._plan.is_sweep else found[0]

    def explain(self) -> View:
        """Return why the run is not training."""
        now = time.time()
        found = [
            (records.run, explanation_of(status_of(self._plan.config.name, records, jobs, now), records, jobs))
            for records, jobs in self._seen()
        ]
        return SweepExplanation(found) if self._plan.is_sweep else found[0][1]

    def logs(self, query: LogQuery) -> Iterator[str]:
        """Yield lines of the jobs' logs. srun puts the rank of the node before each line of its output."""
        if query.node:
            raise CommandError(INVALID, "--node: engine slurm has one log per job; use --rank")
        folder = Path(self._plan.folder, "log")
        read: dict[Path, int] = {}
        partial: dict[Path, str] = {}
        oldest = time.time() - query.since_seconds
        while True:
            for path in sorted(folder.glob("*.log"), key=lambda each: each.stat().st_mtime):
                if path not in read and path.stat().st_mtime < oldest:
                    continue
                with path.open("rb") as file:
                    file.seek(read.get(path, 0))
                    content = file.read()
                read[path] = read.get(path, 0) + len(content)
                *lines, partial[path] = (partial.get(path, "") + content.decode(errors="replace")).split("\n")
                if not query.follow and partial[path]:
                    lines.append(partial[path])
                yield from (line for line in lines if _is_of(line, query.rank))
            if not query.follow:
                return
            time.sleep(POLL_SECONDS)

    def stop(self, *, waits: bool, as_json: bool) -> None:
        """Ask running jobs to save and stop, and cancel pending ones. Later jobs do not train until `resume`."""
        request_stop(self._plan, getpass.getuser())
        for job in queue.jobs(self._plan, self._run):
            if job.state == "PENDING":
                queue.slurm("scancel", job.number, run=self._run)
            elif job.state == "RUNNING":
                queue.slurm("scancel", "--batch", "--signal=TERM", job.number, run=self._run)

        def look() -> Look:
            jobs = queue.jobs(self._plan, self._run)
            return Look(not jobs, f"stopping: {len(jobs)} jobs left")

        if waits and not wait(look, STOP_SECONDS):
            raise CommandError(FAILED, f"{self._file}: jobs remain after {STOP_SECONDS:.0f} s; see `squeue --me`")
        self._done("stopped" if waits else "stop requested", as_json=as_json)

    def resume(self, *, waits: bool, as_json: bool) -> None:
        """Submit jobs for the runs that have not finished and have no job. Earlier failures do not count."""
        if self._submitted() is None:
            raise CommandError(INVALID, f"{self._file}: no job has been submitted; run `trainstack up {self._file}`")
        if submission_digest(self._plan) != self._submitted():
            raise CommandError(INVALID, f"{self._file}: has changed since its jobs; run `trainstack up {self._file}`")
        started = self._start(submission_digest(self._plan))

        def look() -> Look:
            members = self._members(self.observe())
            return Look(
                all(each.phase in ("running", "ended") for each in members),
                "; ".join(f"{each.run}: {each.phase}" for each in members),
            )

        if waits and started and not wait(look, START_SECONDS):
            raise CommandError(
                FAILED, f"{self._file}: is not training after {START_SECONDS:.0f} s; see `trainstack why`"
            )
        self._done("resumed" if started else "was not stopped", as_json=as_json)

    def _start(self, digest: str) -> bool:
        """Submit jobs for the runs without one. Return whether there were any."""
        allow(self._plan)
        idle = [index for index, (records, jobs) in enumerate(self._seen()) if not jobs and records.end != "finished"]
        if idle:
            number = queue.submit(self._plan, idle, self._run)
            write_json(Path(self._plan.folder, "submitted.json"), digest=digest, job_id=number)
            print(f"{self._file}: submitted job {number}", file=sys.stderr)
        return bool(idle)

    def _submitted(self) -> str | None:
        """Return the digest of the last submission, or None."""
        try:
            found = read_json(Path(self._plan.folder, "submitted.json"))
        except RecordError as error:
            raise CommandError(FAILED, str(error)) from error
        return None if found is None else str(found.get("digest"))

    def _seen(self) -> list[tuple[MemberRecords, list[QueuedJob]]]:
        """Return each run's records and jobs."""
        jobs = queue.jobs(self._plan, self._run)
        if not self._plan.is_sweep:
            return [(read_records(self._plan.members[0]), jobs)]
        return [
            (read_records(member), [job for job in jobs if job.array_index == index])
            for index, member in enumerate(self._plan.members)
        ]

    @staticmethod
    def _members(found: RunStatus | SweepStatus) -> Sequence[RunStatus]:
        return found.members if isinstance(found, SweepStatus) else [found]

    def _follow(self) -> None:
        def look() -> Look:
            members = self._members(self.observe())
            is_over = all(each.phase in ("ended", "stopped", "idle") for each in members)
            return Look(is_over, "; ".join(f"{each.run}: {each.line()}" for each in members))

        wait(look, FOREVER)

    def _done(self, text: str, *, as_json: bool) -> None:
        if as_json:
            print(json.dumps({"result": text, "status": self.observe().to_json()}))
        else:
            print(f"{self._plan.config.name}: {text}")


def _is_of(line: str, rank: int | None) -> bool:
    """Return whether a line is of a rank. The job script's own lines have no rank."""
    return rank is None or line.partition(":")[0].strip() == str(rank)
