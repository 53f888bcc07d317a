"""A run's jobs in Slurm's queue."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bootstrap.slurm.commands import SlurmError, call
from trainstack.session import FAILED, CommandError
from trainstack.slurm.plan import Plan

Call = Callable[..., str]

# Source (2026-11): https://slurm.schedmd.com/job_reason_codes.html. Each reason's sentence and remedy.
REASONS: dict[str, tuple[str, str]] = {
    "None": ("Slurm has not considered the job yet.", ""),
    "Resources": ("The job waits for free nodes.", "see `sinfo`, or request fewer or other nodes"),
    "Priority": ("Jobs with a higher priority wait for the same nodes.", "see `sprio -l` and `squeue --start`"),
    "Dependency": ("The job waits for the end of the job that it continues.", ""),
    "DependencyNeverSatisfied": ("The job that this one continues was cancelled.", "run `trainstack resume FILE`"),
    "BeginTime": ("Slurm holds the requeued job for two minutes.", "set slurm.continue_by: resubmit or spare"),
    "JobHeldUser": ("The user holds the job.", "release it with `scontrol release JOB`"),
    "JobHeldAdmin": ("An administrator holds the job.", "ask the administrator"),
    "ReqNodeNotAvail": ("A node that the job needs is down, drained or reserved.", "see `sinfo --list-reasons`"),
    "NodeDown": ("A node that the job needs is down.", "see `sinfo --list-reasons`"),
    "BadConstraints": ("No node has the features in slurm.constraint.", "see `sinfo --format '%N %f'`"),
    "PartitionNodeLimit": (
        "The partition permits fewer nodes, or its nodes are down.",
        "see `scontrol show partition`",
    ),
    "PartitionTimeLimit": ("The time limit exceeds the partition's.", "lower slurm.time_limit_minutes"),
    "PartitionDown": ("The partition is down.", "ask the administrator, or set slurm.partition"),
    "PartitionInactive": ("The partition is inactive.", "ask the administrator, or set slurm.partition"),
    "InvalidAccount": ("The account does not exist.", "correct slurm.account"),
    "InvalidQOS": ("The quality of service does not exist.", "correct slurm.qos"),
    "Reservation": ("The job waits for its reservation.", "see `scontrol show reservation`"),
    "JobArrayTaskLimit": ("The sweep's limit of parallel runs is reached.", "raise slurm.sweep_parallel"),
    "Licenses": ("The job waits for a license.", ""),
    "Cleaning": ("Slurm still cleans up an earlier job.", ""),
}
LIMIT_SENTENCE = (
    "A limit of the account, the QOS or the user is reached.",
    "see `sacctmgr show assoc` and `sacctmgr show qos`",
)


@dataclass(frozen=True)
class QueuedJob:
    """A pending, running or completing job.

    Attributes:
        number: Job number, such as 12, or 12_3 for a task of an array.
        state: Slurm's state, such as PENDING.
        reason: Reason of a pending job, without its details.
        detail: Reason with details.
        nodes: Node list of a running job.
        start: Estimated start of a pending job, or `N/A`.
    """

    number: str
    state: str
    reason: str
    detail: str
    nodes: str
    start: str

    @property
    def array_index(self) -> int | None:
        """Index of the array task; None for other jobs, and for the pending part of an array."""
        index = self.number.rpartition("_")[2] if "_" in self.number else ""
        return int(index) if index.isdecimal() else None


def jobs(plan: Plan, run: Call = call) -> list[QueuedJob]:
    """Return the caller's jobs of a plan, oldest first. Pending tasks of an array are listed one by one.

    Raises:
        CommandError: Slurm does not respond, or is not installed.
    """
    options = [
        "--noheader",
        "--array",
        f"--name={plan.job_name}",
        f"--user={getpass.getuser()}",
        "--format=%i|%T|%r|%N|%S",
    ]
    found = []
    for line in slurm("squeue", *options, run=run).splitlines():
        number, state, detail, nodes, start = line.strip().split("|", 4)
        reason = detail.partition(",")[0].partition(" ")[0].strip("()")
        found.append(QueuedJob(number, state, reason, detail, nodes, start))
    return sorted(found, key=lambda job: [int(part) if part.isdecimal() else 0 for part in job.number.split("_")])


def explain(job: QueuedJob) -> tuple[str, str]:
    """Return a sentence and a remedy for a pending job."""
    known = REASONS.get(job.reason)
    if known is not None:
        return known
    if "Limit" in job.reason or job.reason.startswith(("QOS", "Assoc")):
        return LIMIT_SENTENCE
    return f"Slurm reports: {job.detail}.", "see https://slurm.schedmd.com/job_reason_codes.html"


def slurm(*command: str, run: Call = call) -> str:
    """Run a command of Slurm.

    Raises:
        CommandError: It failed.
    """
    try:
        return run(*command)
    except SlurmError as error:
        raise CommandError(FAILED, f"{error}; run the command on a login node of the cluster") from error


def submit(plan: Plan, indices: Sequence[int], run: Call = call) -> str:
    """Submit the job script, and return the number of the job. `indices`: the array tasks of a sweep.

    Raises:
        CommandError: Slurm rejects the job.
    """
    options = []
    if plan.is_sweep and len(indices) < len(plan.members):
        limit = f"%{plan.slurm.sweep_parallel}" if plan.slurm.sweep_parallel is not None else ""
        options.append(f"--array={','.join(map(str, indices))}{limit}")
    return slurm("sbatch", "--parsable", *options, str(plan.script), run=run).partition(";")[0]
