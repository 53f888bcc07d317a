"""The same promise through the real supervisor and torchrun: two machines, faults, and the generations that follow."""

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

from benchmarks.chaos.campaign import INTERVAL_STEPS, Reference, most_lost_steps
from benchmarks.chaos.contents import checkpoints, differences
from benchmarks.chaos.nodes import REPOSITORY, Node
from benchmarks.chaos.tally import Report
from benchmarks.local_moto import endpoint_environment
from training.checkpoint.backend import Backend
from training.checkpoint.store import checkpoint_entries

RUN = "chaos"
PARAMETER = "/trainstack/chaos/run"
LOG_GROUP = "/trainstack/chaos"
NODES = 2
WAIT_SECONDS = 120.0
NOTICE_SECONDS = 6.0
"""The machine trains on for most of it: with AWS's two minutes the experiment would do little else."""
POLL_SECONDS = 0.05
LEAST_STEPS = INTERVAL_STEPS + 5
"""Of a generation before its fault: it has then saved a further step, so that no supervisor loses patience."""
MOST_STEPS = LEAST_STEPS + 20


@dataclass
class Account:
    """Buckets, parameter, log group, code and data, as a deployment makes them.

    Attributes:
        s3: client.
        ssm: client.
        bucket: holds all of it.
        endpoint: of the account.
    """

    s3: Any
    ssm: Any
    logs: Any
    bucket: str
    endpoint: str

    def fill(self, dataset: Path) -> dict[str, str]:
        """Upload code and dataset, and return where the code is."""
        self.logs.create_log_group(logGroupName=LOG_GROUP)
        for file in dataset.iterdir():
            self.s3.put_object(Bucket=self.bucket, Key=f"datasets/{dataset.name}/{file.name}", Body=file.read_bytes())
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for path in sorted((REPOSITORY / "training").rglob("*.py")):
                archive.write(path, path.relative_to(REPOSITORY).as_posix())
        body = buffer.getvalue()
        self.s3.put_object(Bucket=self.bucket, Key="code.zip", Body=body)
        return {"bucket": self.bucket, "key": "code.zip", "sha256": hashlib.sha256(body).hexdigest()}

    def node_document(self) -> dict[str, Any]:
        """What every machine is told."""
        return {
            "schema_version": 1,
            "deployment": "chaos",
            "region": "us-east-1",
            "dataset_bucket": self.bucket,
            "checkpoint_bucket": self.bucket,
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
        """How the run ended; None: it has not."""
        try:
            answer = self.s3.get_object(Bucket=self.bucket, Key=f"runs/{RUN}/control/outcome.json")
        except self.s3.exceptions.NoSuchKey:
            return None
        document: dict[str, Any] = json.loads(answer["Body"].read())
        return document


@dataclass
class SupervisedRun:
    """Two machines and one run.

    Attributes:
        folder: for the machines' roots.
        account: what they work with.
        code: bundle of the trainer.
        dataset: its name.
        config: of the run.
        reference: the unbroken run.
        backend: the run's checkpoints, as the experimenter reads them.
        report: takes in what is seen.
        seed: of all choices.
        restart_seconds: from a fault to the next generation's first step, as it comes.
        given_up: set it to end early, without a comparison.
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
    given_up: threading.Event = field(default_factory=threading.Event)
    _nodes: list[Node] = field(default_factory=list)
    _machines: int = 0
    _edits: int = 0

    def run(self, cycles: int, until_monotonic: float, show: Callable[[], None]) -> None:
        """Disturb the run so many times, then let it finish and compare."""
        self._put_run_document()
        for _ in range(NODES):
            self._launch()
        choice = random.Random(self.seed)  # noqa: S311 an experiment, not a secret
        generation = 0
        try:
            for number in range(cycles):
                if number % len(DEEDS) == 0:
                    deck = choice.sample(list(DEEDS), len(DEEDS))
                if self.given_up.is_set():
                    return
                if time.monotonic() >= until_monotonic or self.account.outcome() is not None:
                    break
                generation = self._cycle(deck[number % len(DEEDS)], generation, choice)
                show()
                if generation == 0:
                    return
            self._finish(generation)
        finally:
            for node in self._nodes:
                node.close()

    def _cycle(self, name: str, before: int, choice: random.Random) -> int:
        """Wait for a generation to train, disturb it, wait for the next; return its number, 0 if none came."""
        steps = choice.randint(LEAST_STEPS, MOST_STEPS)
        started: int | None = self._wait(lambda: self._training_generation(before, steps))
        if started is None:
            self.report.note(name, "hangs", f"no generation after {before} trains:\n{self._consoles()}")
            return 0
        known = next((entry.sequence for entry in checkpoint_entries(self.backend)), 0)
        disturbed = time.time()
        tally = self.report.of(name)
        tally.cycles += 1
        tally.kills += DEEDS[name].deed(self, choice)
        heir: int | None = self._wait(lambda: self._training_generation(started, 1))
        if heir is None:
            self.report.note(name, "hangs", f"no generation follows {started}:\n{self._consoles()}")
            return 0
        self._judge(name, started, heir, known)
        self.restart_seconds.append(self._records(heir, "step")[0]["unix_seconds"] - disturbed)
        return heir - 1  # the generation that is running now is the next to be disturbed

    def _judge(self, name: str, generation: int, heir: int, known: int) -> None:
        done = max(record["step"] for record in self._records(generation, "step"))
        resumed = self._records(heir, "start")[0]["resumed_from_step"] or 0
        bound = 0 if DEEDS[name].loses_nothing else self._bound(generation)
        self.report.note_lost(name, max(0, done - resumed), bound, f"supervised, generation {generation}")
        newest = next(checkpoints(self.backend), None)
        if newest is not None and newest.problem is not None:
            self.report.note(name, "unreadable", newest.problem)
        if newest is not None and newest.entry.sequence < known:
            self.report.note(name, "wrong", f"the log went back to entry {newest.entry.sequence}")
        for each in (generation, heir):
            self._compare_losses(name, each)

    def _bound(self, generation: int) -> int:
        return max(most_lost_steps(node.run_directory(RUN, generation)) for node in self._nodes)

    def _compare_losses(self, name: str, generation: int) -> None:
        for record in self._records(generation, "step"):
            expected = self.reference.losses[record["step"]]
            if record["loss"] != expected:
                told = f"the loss of step {record['step']} is {record['loss']!r}, unbroken it is {expected!r}"
                self.report.note(name, "wrong", f"supervised, generation {generation}: {told}")
                return

    def _finish(self, generation: int) -> None:
        outcome = None
        # As long as it gets on, it does not hang.
        while outcome is None and self._gets_on():
            outcome = self.account.outcome()
        if outcome is None or outcome["outcome"] != "finished":
            told = f"after generation {generation} the run does not finish: {outcome}\n{self._consoles()}"
            self.report.note("supervised run", "wrong", told)
            return
        self.report.runs_compared += 1
        unequal = differences(self.backend, self.reference.backend)
        if unequal:
            self.report.note("supervised run", "unequal", f"other bits than unbroken: {unequal[:5]}")

    def _gets_on(self) -> bool:
        """Wait for the end of the run or a further step; return whether one came."""
        reached = self._progress()
        return bool(self._wait(lambda: self.account.outcome() or self._progress() > reached))

    def _progress(self) -> tuple[int, int]:
        newest = max(self._generations(), default=0)
        return newest, max((record["step"] for record in self._records(newest, "step")), default=0)

    def _training_generation(self, after: int, steps: int) -> int | None:
        """Number of a later generation that has done so many steps, if there is one."""
        numbers = [number for number in self._generations() if number > after]
        return next((number for number in numbers if len(self._records(number, "step")) >= steps), None)

    def _generations(self) -> list[int]:
        folders = {path.name for node in self._nodes for path in node.run_directory(RUN, 0).parent.glob("gen-*")}
        return sorted(int(name.removeprefix("gen-")) for name in folders)

    def _records(self, generation: int, kind: str) -> list[dict[str, Any]]:
        return next((found for node in self._nodes if (found := node.records(RUN, generation, kind))), [])

    def _wait(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline and not self.given_up.is_set():
            found = condition()
            if found:
                return found
            time.sleep(POLL_SECONDS)
        return None

    def _launch(self) -> None:
        self._machines += 1
        document, environment = self.account.node_document(), endpoint_environment(self.account.endpoint)
        self._nodes.append(Node(self.folder, self._machines, document, environment | {"OMP_NUM_THREADS": "1"}))

    def _put_run_document(self) -> None:
        # A changed interval of validation changes the document's digest and no bit of the weights.
        validation = {**self.config["validation"], "batches": 2 + self._edits % 2}
        document = {
            "schema_version": 1,
            "deployment": "chaos",
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
        told = [f"the run's outcome: {self.account.outcome()}"]
        for node in self._running():
            told += [f"== {node.instance_id}", node.console(), *node.last_events()]
        return "\n".join(told)

    def _running(self) -> list[Node]:
        return [node for node in self._nodes if node.process.poll() is None]

    def kill_one_rank(self, choice: random.Random) -> int:
        """SIGKILL to one rank."""
        pids = [pid for node in self._running() for pid in node.trainers()]
        os.kill(choice.choice(sorted(pids)), signal.SIGKILL)
        return 1

    def kill_all_ranks(self, choice: random.Random) -> int:
        """SIGKILL to every rank."""
        pids = [pid for node in self._running() for pid in node.trainers()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return len(pids)

    def terminate_torchrun(self, choice: random.Random) -> int:
        """SIGTERM to one torchrun, which passes it on."""
        os.kill(choice.choice(self._running()).torchruns()[0], signal.SIGTERM)
        return 0

    def give_notice(self, choice: random.Random) -> int:
        """A spot notice for one machine, whose replacement comes at once."""
        choice.choice(self._running()).metadata.give_notice(NOTICE_SECONDS)
        self._launch()
        return 0

    def kill_supervisor(self, choice: random.Random) -> int:
        """SIGKILL to one supervisor, which the machine starts again."""
        node = choice.choice(self._running())
        node.kill_supervisor()
        node.start()
        return 1

    def lose_machine(self, choice: random.Random) -> int:
        """One machine is gone without a word; another comes."""
        node = choice.choice(self._running())
        node.close()
        self._launch()
        return 1

    def edit_run(self, choice: random.Random) -> int:
        """A changed run document: all nodes restart in place."""
        self._edits += 1
        self._put_run_document()
        return 0


@dataclass(frozen=True)
class Deed:
    """A fault at supervised machines; it returns the number of processes killed."""

    deed: Callable[[SupervisedRun, random.Random], int]
    loses_nothing: bool = False


DEEDS: dict[str, Deed] = {
    "torchrun: kill one rank": Deed(SupervisedRun.kill_one_rank),
    "torchrun: kill all ranks": Deed(SupervisedRun.kill_all_ranks),
    "torchrun: SIGTERM to torchrun": Deed(SupervisedRun.terminate_torchrun, loses_nothing=True),
    "torchrun: notice": Deed(SupervisedRun.give_notice, loses_nothing=True),
    "torchrun: kill supervisor": Deed(SupervisedRun.kill_supervisor),
    "torchrun: lose machine": Deed(SupervisedRun.lose_machine),
    "torchrun: new generation": Deed(SupervisedRun.edit_run, loses_nothing=True),
}
