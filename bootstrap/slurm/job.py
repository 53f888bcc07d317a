"""The commands of the job script, which run on the job's first node: `begin`, `notice` and `conclude`.

`begin` claims a generation, `notice` makes sure that a job continues the run, and `conclude` decides what happens after
the trainers exit.
"""

from __future__ import annotations

import os
import random
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from bootstrap.slurm import commands
from bootstrap.slurm.commands import SlurmError
from bootstrap.slurm.decide import AGAIN, CONTINUE, FAILED, FINISHED, STOPPED, Decision, Seen, decide, newest_checkpoint
from bootstrap.slurm.records import Generations, JobDocument, RecordError, read_json, write_json, write_text

Answer = TypeVar("Answer")
PREDECESSOR = "TRAINSTACK_PREDECESSOR"
"""Environment variable with the number of the job that submitted this one."""
NOT_TRAINING = 10
"""Exit code of `begin` if this job does not train: the run is over or stopped, or another job continues it."""
PORTS = range(20000, 30000)
RECLAIM_MARGIN_SECONDS = 30.0
RETRY_SECONDS = (1.0, 5.0, 10.0, 20.0, 30.0, 60.0)
"""Pauses between attempts to reach the controller, which may be restarting."""
RESTART_PAUSE_SECONDS = 5.0


class Job:
    """This job and its run's records."""

    def __init__(self, document: JobDocument, environment: Mapping[str, str]) -> None:
        self.document = document
        self.folder = Path(document.folder)
        self.generations = Generations(self.folder)
        self.number = environment["SLURM_JOB_ID"]
        self.restarts = int(environment.get("SLURM_RESTART_COUNT") or 0)
        self.predecessor = environment.get(PREDECESSOR, "")
        self.partition = environment.get("SLURM_JOB_PARTITION", "")
        self.node_list = environment.get("SLURM_JOB_NODELIST", "")

    def begin(self) -> int:
        """Claim the next generation, and print its settings as shell assignments.

        Returns:
            0, or NOT_TRAINING after printing the reason.
        """
        reason = self._reason_not_to_train()
        if reason:
            print(f"trainstack: {reason}", file=sys.stderr)
            return NOT_TRAINING
        if self.document.continue_by == "spare":
            self._continue("held spare", ())
        nodes = self._usable(_retried(lambda: commands.hosts(self.node_list)))
        if len(nodes) < self.document.min_nodes:
            self._continue("too few usable nodes", ())
            print(f"trainstack: {len(nodes)} usable nodes, {self.document.min_nodes} needed", file=sys.stderr)
            return NOT_TRAINING
        generation = self.generations.claim(
            job_id=self.number, restarts=self.restarts, nodes=list(nodes), ranks=self._ranks(len(nodes))
        )
        port = _port(nodes[0], generation, self.number)
        values = {
            "generation": str(generation),
            "nodes": ",".join(nodes),
            "node_count": str(len(nodes)),
            "master_address": nodes[0],
            "master_port": str(port),
            "records": str(self.generations.folder(generation)),
            "grace_seconds": str(_retried(lambda: commands.grace_seconds(self.partition))),
        }
        for name, value in values.items():
            print(f"{name}={shlex.quote(value)}")
        return 0

    def notice(self, generation: int, reason: str) -> str:
        """Submit the job that continues the run, because this job is about to end. Return a message."""
        if (self.folder / "stopped").exists() or self._is_cancelled():
            return "the user ends the run"
        if self.document.continue_by == "requeue":
            return "the job requeues itself when the trainers have saved"
        stopping = self._stopping(generation)
        if not reason and not stopping:
            return "a node failed; this job continues"
        cause = reason or stopping[0]
        return self._continue(cause, tuple(sorted(self._avoided(generation))), generation)

    def conclude(self, generation: int, reason: str) -> str:
        """Decide what to do after a generation, and do it. Return the action to the job script."""
        claim = read_json(self.generations.folder(generation) / "claim.json") or {}
        nodes = tuple(claim.get("nodes", ()))
        outcomes = self.generations.outcomes(generation)
        failures, before = self._history(generation)
        seen = Seen(
            ranks=int(claim.get("ranks", 0)),
            outcomes=outcomes,
            nodes=nodes,
            lost=self._lost(nodes, outcomes),
            avoided=self._avoided(generation),
            stopping=self._stopping(generation),
            has_failed_node=bool(self.generations.marked(generation, "failed")),
            reason=reason,
            cancelled=self._is_cancelled(),
            stopped=(self.folder / "stopped").exists(),
            failures=failures,
            checkpoint_before=before,
            has_later=max(self.generations.numbers(), default=0) > generation,
        )
        decision = decide(seen, self.document.min_nodes, self.document.max_failures)
        write_json(
            self.generations.folder(generation) / "end.json",
            action=decision.action,
            cause=decision.cause,
            message=decision.message,
            failures=decision.failures,
            excluded=list(decision.excluded),
            checkpoint_step=decision.checkpoint_step,
            job_id=self.number,
        )
        print(f"trainstack: {decision.action}: {decision.cause}: {decision.message}", file=sys.stderr)
        self._act(generation, decision)
        return decision.action

    def _act(self, generation: int, decision: Decision) -> None:
        if decision.action in (FINISHED, FAILED):
            write_json(
                self.folder / f"{decision.action}.json",
                generation=generation,
                cause=decision.cause,
                message=decision.message,
                checkpoint_step=decision.checkpoint_step,
            )
        if decision.action in (FINISHED, FAILED, STOPPED):
            self._cancel_successor()
        elif decision.action == CONTINUE and self.document.continue_by == "requeue":
            _retried(lambda: commands.call("scontrol", "requeue", self.number))
        elif decision.action == CONTINUE:
            self._continue(decision.cause, decision.excluded, generation)
        elif decision.action == AGAIN and decision.failures:
            time.sleep(RESTART_PAUSE_SECONDS * decision.failures)

    def _reason_not_to_train(self) -> str:
        if (self.folder / "stopped").exists():
            return "the user stopped the run"
        for name in ("finished", "failed"):
            end = read_json(self.folder / f"{name}.json")
            if end is not None:
                return f"the run has {name}: {end.get('message', '')}"
        if self.predecessor and not self.restarts:
            state = _retried(lambda: commands.job_attributes(self.predecessor)).get("JobState", "")
            if state == "CANCELLED":
                return f"the user cancelled job {self.predecessor}, which this job continues"
        successor = self._successor()
        if self.restarts and successor and _retried(lambda: commands.is_alive(successor)):
            return f"job {successor} continues the run"
        return ""

    def _is_cancelled(self) -> bool:
        return _retried(lambda: commands.job_attributes(self.number)).get("JobState", "") == "CANCELLED"

    def _usable(self, nodes: list[str]) -> list[str]:
        """Return the job's nodes, except those that earlier generations of this job lost or must avoid."""
        excluded: set[str] = set()
        for number in self.generations.numbers():
            claim = read_json(self.generations.folder(number) / "claim.json") or {}
            end = self.generations.end(number)
            if end is not None and (claim.get("job_id"), claim.get("restarts")) == (self.number, self.restarts):
                excluded.update(end.get("excluded", ()))
        if len(nodes) > self.document.min_nodes:
            excluded |= _retried(lambda: commands.lost_nodes(nodes))
        return [node for node in nodes if node not in excluded]

    def _lost(self, nodes: tuple[str, ...], outcomes: Mapping[int, object]) -> frozenset[str]:
        """Return the nodes that are down and, if a rank was killed, the nodes that do not respond yet."""
        if not nodes:
            return frozenset()
        lost = _retried(lambda: commands.lost_nodes(nodes))
        if len(outcomes) < self._ranks(len(nodes)):
            lost |= _retried(lambda: commands.unreachable_nodes(nodes))
        return lost

    def _ranks(self, nodes: int) -> int:
        return nodes * self.document.processes_per_node

    def _avoided(self, generation: int) -> frozenset[str]:
        marked = self.generations.marked
        return frozenset(marked(generation, "leaving")) | frozenset(marked(generation, "unhealthy"))

    def _stopping(self, generation: int) -> tuple[str, ...]:
        """Return the reasons reported by the nodes that are stopping.

        After a failure, srun sends SIGTERM to the other nodes, which they cannot distinguish from a preemption. Slurm's
        PreemptTime is set only after a preemption.
        """
        reasons = [str(each.get("reason", "")) for each in self.generations.marked(generation, "stopping").values()]
        if "preempted" in reasons and self.generations.marked(generation, "failed"):
            attributes = _retried(lambda: commands.job_attributes(self.number))
            if attributes.get("PreemptTime", "None") in ("None", "Unknown"):
                reasons = [reason for reason in reasons if reason != "preempted"]
        return tuple(reasons)

    def _history(self, generation: int) -> tuple[int, int | None]:
        """Return the consecutive failures before a generation, and the newest checkpoint step known before it."""
        resumed = (read_json(self.folder / "resumed.json") or {}).get("generation", 0)
        earlier = [each for each in reversed(self.generations.numbers()) if each < generation]
        ends = {number: self.generations.end(number) or {} for number in earlier}
        failures = next((int(end.get("failures", 0)) for number, end in ends.items() if end and number > resumed), 0)
        for number, end in ends.items():
            step = newest_checkpoint([*self.generations.outcomes(number).values(), end])
            if step is not None:
                return failures, step
        return failures, None

    def _successor(self) -> str:
        try:
            return (self.folder / "successors" / self.number).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""

    def _continue(self, cause: str, excluded: tuple[str, ...], generation: int = 0) -> str:
        """Submit a job that starts after this job has ended, unless one exists. Return a message."""
        successor = self._successor()
        if successor and _retried(lambda: commands.is_alive(successor)):
            return f"job {successor} continues the run"
        options = [f"--dependency=afterany:{self.number}", *self._placement(excluded, generation)]
        if self.document.array_index is not None:
            options.append(f"--array={self.document.array_index}")
        variables = {PREDECESSOR: self.number}
        answer = _retried(
            lambda: commands.call("sbatch", "--parsable", *options, self.document.script, variables=variables)
        )
        successor = answer.partition(";")[0]
        write_text(self.folder / "successors" / self.number, f"{successor}\n")
        print(f"trainstack: submitted job {successor} ({cause}): {' '.join(options)}", file=sys.stderr)
        return f"submitted job {successor}"

    def _placement(self, excluded: tuple[str, ...], generation: int) -> list[str]:
        """Return the options that keep a successor off nodes that are about to disappear or have faults.

        If there are not enough other nodes, the successor waits until AWS has reclaimed the nodes with a notice.
        """
        if not excluded:
            return []
        others = _retried(lambda: commands.usable_nodes(self.document.partition)) - set(excluded)
        if len(others) >= self.document.nodes:
            return [f"--exclude={','.join(sorted(excluded))}"]
        leaving = self.generations.marked(generation, "leaving") if generation else {}
        until = max((float(each.get("reclaim_unix_seconds", 0)) for each in leaving.values()), default=0.0)
        seconds = int(until + RECLAIM_MARGIN_SECONDS - time.time())
        return [f"--begin=now+{seconds}"] if until and seconds > 0 else []

    def _cancel_successor(self) -> None:
        successor = self._successor()
        if not successor:
            return
        try:
            commands.call("scancel", successor)
        except SlurmError as error:  # it may have started and ended already
            print(f"trainstack: {error}", file=sys.stderr)


def _port(master: str, generation: int, number: str) -> int:
    """Return a port for the gang's store: free if this is the first node, and rarely used otherwise."""
    draw = random.Random(f"{number}.{generation}")  # noqa: S311 no secret
    for _ in range(100):
        port = draw.choice(PORTS)
        if master != os.uname().nodename.partition(".")[0]:
            return port
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    raise RecordError(f"{master}: no free port in {PORTS}")


def _retried(call: Callable[[], Answer]) -> Answer:
    """Return the result of a call to the controller, which may be restarting.

    Raises:
        SlurmError: The last attempt failed.
    """
    for pause in RETRY_SECONDS:
        try:
            return call()
        except SlurmError as error:
            print(f"trainstack: {error}; trying again in {pause:.0f} s", file=sys.stderr)
            time.sleep(pause)
    return call()
