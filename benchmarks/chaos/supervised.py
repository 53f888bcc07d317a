"""Runs the same checks with the real supervisor and launcher, on two nodes and across generations."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import signal
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos.campaign import INTERVAL_STEPS, Reference, max_lost_steps
from benchmarks.chaos.contents import checkpoints, differences
from benchmarks.chaos.garbage import Garbage
from benchmarks.chaos.nodes import REPOSITORY, Node
from benchmarks.chaos.tally import Report
from benchmarks.servers.local_moto import endpoint_environment
from bootstrap.documents.decoding import SCHEMA_VERSION
from bootstrap.documents.object_keys import control_prefix, run_prefix
from training.checkpoint.storage.backend import Backend
from training.checkpoint.store import checkpoint_entries

DEPLOYMENT = RUN = "chaos"
PARAMETER = "/trainstack/chaos/run"
LOG_GROUP = "/trainstack/chaos"
NODES = 2
WAIT_SECONDS = 120.0
NOTICE_SECONDS = 6.0
"""Length of a notice. The node trains for most of it, so AWS's two minutes would dominate the experiment's duration."""
POLL_SECONDS = 0.05
MIN_STEPS = INTERVAL_STEPS + 5
"""Steps that a generation takes before its fault. By then it has saved a new step, so the supervisors see progress."""
MAX_STEPS = MIN_STEPS + 20


@dataclass
class Account:
    """Bucket, parameter, log group, code and data, as a deployment creates them.

    Attributes:
        s3: client for S3.
        ssm: client for Parameter Store.
        logs: client for CloudWatch Logs.
        bucket: bucket that holds code, data and checkpoints.
        endpoint: the account's endpoint.
    """

    s3: Any
    ssm: Any
    logs: Any
    bucket: str
    endpoint: str

    def fill(self, dataset: Path) -> dict[str, str]:
        """Upload the code and the dataset; return the code's location."""
        self.logs.create_log_group(logGroupName=LOG_GROUP)
        for file in dataset.iterdir():
            self.s3.put_object(Bucket=self.bucket, Key=f"datasets/{dataset.name}/{file.name}", Body=file.read_bytes())
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in ("hardware", "training"):
                for path in sorted(one for one in (REPOSITORY / name).rglob("*") if one.suffix in (".py", ".json")):
                    archive.write(path, path.relative_to(REPOSITORY).as_posix())
        body = buffer.getvalue()
        self.s3.put_object(Bucket=self.bucket, Key="code.zip", Body=body)
        return {"bucket": self.bucket, "key": "code.zip", "sha256": hashlib.sha256(body).hexdigest()}

    def node_document(self) -> dict[str, Any]:
        """Return the node document."""
        return {
            "schema_version": SCHEMA_VERSION,
            "deployment": DEPLOYMENT,
            "region": "us-east-1",
            "role_id": "AROACHAOS",
            "dataset_bucket": self.bucket,
            "checkpoint_bucket": self.bucket,
            "control_bucket": self.bucket,
            "run_parameter": PARAMETER,
            "log_group": LOG_GROUP,
            "bundle": {"bucket": self.bucket, "key": "node.zip", "sha256": "0" * 64},
            "gpus": 0,
            "fabric": "tcp",
            "python": {"interpreter": sys.executable, "packages": ["torch"]},
            "supervise": {
                "poll_seconds": 0.2,
                "heartbeat_seconds": 0.5,
                "heartbeat_timeout_seconds": 4,
                "gang_timeout_seconds": 30,
                "boot_timeout_seconds": 120,
            },
        }

    def outcome(self) -> dict[str, Any] | None:
        """Return the run's outcome; None if it has not ended."""
        try:
            response = self.s3.get_object(Bucket=self.bucket, Key=f"{control_prefix(DEPLOYMENT, RUN)}outcome.json")
        except self.s3.exceptions.NoSuchKey:
            return None
        document: dict[str, Any] = json.loads(response["Body"].read())
        return document


@dataclass
class SupervisedRun:
    """Two nodes and one run.

    Attributes:
        folder: parent of the nodes' root directories.
        account: AWS resources of the nodes.
        code: the trainer's code bundle.
        dataset: name of the dataset.
        config: the run's configuration.
        reference: the uninterrupted run.
        backend: the run's checkpoints, bypassing the faults.
        report: report that receives the results.
        seed: seed for all choices.
        restart_seconds: times from a fault to the first step of the next generation.
        aborted: event to set to end the run early, without comparing it.
        garbage_objects: number of objects to add to the run's records during training; afterward, the number added.
    """

    folder: Path
    account: Account
    code: Mapping[str, str]
    dataset: str
    config: Mapping[str, Any]
    reference: Reference
    backend: Backend
    report: Report
    seed: str
    restart_seconds: list[float] = field(default_factory=list)
    aborted: threading.Event = field(default_factory=threading.Event)
    garbage_objects: int = 0
    _nodes: list[Node] = field(default_factory=list)
    _launched: int = 0
    _edits: int = 0

    def run(self, cycles: int, until_monotonic: float, show: Callable[[], None]) -> None:
        """Inject a number of faults, then let the run finish and compare it."""
        self._put_run_document()
        for _ in range(NODES):
            self._launch()
        choice = random.Random(self.seed)  # noqa: S311 (not a secret)
        generation = 0
        account = self.account
        garbage = Garbage(
            account.s3, account.bucket, f"{run_prefix(DEPLOYMENT, RUN)}/", self.garbage_objects, self.seed
        )
        garbage.start()
        try:
            for number in range(cycles):
                if number % len(SUPERVISED_FAULTS) == 0:
                    deck = choice.sample(list(SUPERVISED_FAULTS), len(SUPERVISED_FAULTS))
                if self.aborted.is_set():
                    return
                if time.monotonic() >= until_monotonic or self.account.outcome() is not None:
                    break
                generation = self._cycle(deck[number % len(SUPERVISED_FAULTS)], generation, choice)
                show()
                if generation == 0:
                    return
            self._finish(generation)
        finally:
            garbage.close()
            self.garbage_objects = garbage.done
            for node in self._nodes:
                node.close()

    def _cycle(self, name: str, before: int, choice: random.Random) -> int:
        """Wait for a generation to train, inject a fault, and wait for the next; return its number or 0."""
        steps = choice.randint(MIN_STEPS, MAX_STEPS)
        started: int | None = self._wait(lambda: self._training_generation(before, steps))
        if started is None:
            self.report.note(name, "hangs", f"no generation after {before} trained:\n{self._consoles()}")
            return 0
        newest = next((entry.sequence for entry in checkpoint_entries(self.backend)), 0)
        fault_time = time.time()
        tally = self.report.of(name)
        tally.cycles += 1
        tally.kills += SUPERVISED_FAULTS[name].inject(self, choice)
        successor: int | None = self._wait(lambda: self._training_generation(started, 1))
        if successor is None:
            self.report.note(name, "hangs", f"no generation followed {started}:\n{self._consoles()}")
            return 0
        self._judge(name, started, successor, newest)
        self.restart_seconds.append(self._records(successor, "step")[0]["unix_seconds"] - fault_time)
        return successor - 1  # the next fault is injected into the generation that is now running

    def _judge(self, name: str, generation: int, successor: int, previous: int) -> None:
        done = max(record["step"] for record in self._records(generation, "step"))
        resumed = self._records(successor, "start")[0]["resumed_from_step"] or 0
        bound = 0 if SUPERVISED_FAULTS[name].loses_nothing else self._bound(generation)
        self.report.note_lost(name, max(0, done - resumed), bound, f"supervised, generation {generation}")
        newest = next(checkpoints(self.backend), None)
        if newest is not None and newest.problem is not None:
            self.report.note(name, "unreadable", newest.problem)
        if newest is not None and newest.entry.sequence < previous:
            self.report.note(name, "wrong", f"the log went back to entry {newest.entry.sequence}")
        for each in (generation, successor):
            self._compare_losses(name, each)

    def _bound(self, generation: int) -> int:
        return max(max_lost_steps(node.run_directory(RUN, generation)) for node in self._nodes)

    def _compare_losses(self, name: str, generation: int) -> None:
        for record in self._records(generation, "step"):
            expected = self.reference.losses[record["step"]]
            if record["loss"] != expected:
                problem = f"the loss at step {record['step']} is {record['loss']!r}, expected {expected!r}"
                self.report.note(name, "wrong", f"supervised, generation {generation}: {problem}")
                return

    def _finish(self, generation: int) -> None:
        outcome = None
        # A run that makes progress is not hung.
        while outcome is None and self._makes_progress():
            outcome = self.account.outcome()
        if outcome is None or outcome["outcome"] != "finished":
            problem = f"after generation {generation} the run did not finish: {outcome}\n{self._consoles()}"
            self.report.note("supervised run", "wrong", problem)
            return
        self.report.runs_compared += 1
        unequal = differences(self.backend, self.reference.backend)
        if unequal:
            self.report.note("supervised run", "unequal", f"bits differ from the reference: {unequal[:5]}")

    def _makes_progress(self) -> bool:
        """Wait until the run ends or completes another step; return False on timeout."""
        reached = self._progress()
        return bool(self._wait(lambda: self.account.outcome() or self._progress() > reached))

    def _progress(self) -> tuple[int, int]:
        newest = max(self._generations(), default=0)
        return newest, max((record["step"] for record in self._records(newest, "step")), default=0)

    def _training_generation(self, after: int, steps: int) -> int | None:
        """Return the number of a later generation that has completed this many steps; None if there is none."""
        numbers = [number for number in self._generations() if number > after]
        return next((number for number in numbers if len(self._records(number, "step")) >= steps), None)

    def _generations(self) -> list[int]:
        folders = {path.name for node in self._nodes for path in node.run_directory(RUN, 0).parent.glob("gen-*")}
        return sorted(int(name.removeprefix("gen-")) for name in folders)

    def _records(self, generation: int, kind: str) -> list[dict[str, Any]]:
        return next((found for node in self._nodes if (found := node.records(RUN, generation, kind))), [])

    def _wait(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline and not self.aborted.is_set():
            found = condition()
            if found:
                return found
            time.sleep(POLL_SECONDS)
        return None

    def _launch(self) -> None:
        self._launched += 1
        document, environment = self.account.node_document(), endpoint_environment(self.account.endpoint)
        self._nodes.append(Node(self.folder, self._launched, document, environment | {"OMP_NUM_THREADS": "1"}))

    def _put_run_document(self) -> None:
        # Changing a validation setting changes the document's digest, but not a single bit of the weights.
        validation = {**self.config["validation"], "batches": 2 + self._edits % 2}
        document = {
            "schema_version": SCHEMA_VERSION,
            "deployment": DEPLOYMENT,
            "run": RUN,
            "nodes": NODES,
            "min_nodes": NODES,
            "processes_per_node": 1,
            "code": self.code,
            "dataset": self.dataset,
            "training": {**self.config, "validation": validation},
        }
        self.account.ssm.put_parameter(Name=PARAMETER, Value=json.dumps(document), Type="String", Overwrite=True)

    def _consoles(self) -> str:
        texts = [f"outcome of the run: {self.account.outcome()}"]
        for node in self._running():
            texts += [f"== {node.instance_id}", node.console(), *node.last_events()]
        return "\n".join(texts)

    def _running(self) -> list[Node]:
        return [node for node in self._nodes if node.process.poll() is None]

    def kill_one_rank(self, choice: random.Random) -> int:
        """Send SIGKILL to one rank."""
        pids = [pid for node in self._running() for pid in node.trainers()]
        os.kill(choice.choice(sorted(pids)), signal.SIGKILL)
        return 1

    def kill_all_ranks(self, choice: random.Random) -> int:
        """Send SIGKILL to every rank."""
        pids = [pid for node in self._running() for pid in node.trainers()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return len(pids)

    def terminate_launcher(self, choice: random.Random) -> int:
        """Send SIGTERM to one launcher, which forwards it."""
        os.kill(choice.choice(self._running()).launchers()[0], signal.SIGTERM)
        return 0

    def give_notice(self, choice: random.Random) -> int:
        """Send a spot notice to one node, and launch its replacement."""
        choice.choice(self._running()).metadata.give_notice(NOTICE_SECONDS)
        self._launch()
        return 0

    def kill_supervisor(self, choice: random.Random) -> int:
        """Send SIGKILL to one supervisor, which the node restarts."""
        node = choice.choice(self._running())
        node.kill_supervisor()
        node.start()
        return 1

    def lose_node(self, choice: random.Random) -> int:
        """Kill one node without notice, and launch another."""
        node = choice.choice(self._running())
        node.close()
        self._launch()
        return 1

    def edit_run(self, choice: random.Random) -> int:
        """Change the run document: all nodes restart in place."""
        self._edits += 1
        self._put_run_document()
        return 0


@dataclass(frozen=True)
class SupervisedFault:
    """A fault in supervised nodes; ``inject`` returns the number of killed processes."""

    inject: Callable[[SupervisedRun, random.Random], int]
    loses_nothing: bool = False


SUPERVISED_FAULTS: dict[str, SupervisedFault] = {
    "supervised: kill one rank": SupervisedFault(SupervisedRun.kill_one_rank),
    "supervised: kill all ranks": SupervisedFault(SupervisedRun.kill_all_ranks),
    "supervised: SIGTERM to the launcher": SupervisedFault(SupervisedRun.terminate_launcher, loses_nothing=True),
    "supervised: notice": SupervisedFault(SupervisedRun.give_notice, loses_nothing=True),
    "supervised: kill supervisor": SupervisedFault(SupervisedRun.kill_supervisor),
    "supervised: lose node": SupervisedFault(SupervisedRun.lose_node),
    "supervised: new generation": SupervisedFault(SupervisedRun.edit_run, loses_nothing=True),
}
