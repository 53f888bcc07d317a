"""A run on the real cluster, random events, and the cost of each event."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from bootstrap.slurm.records import Generations
from tests.slurm.cluster import Cluster, ClusterError, wait_until

ROOT = Path(__file__).resolve().parents[2]
INTERVAL_STEPS = 200
SIGNAL_SECONDS = 60
RESUME_SECONDS = 240.0
"""Time limit for the next step after an event, which only guards against a hang."""
PREEMPTOR_SECONDS = 1
STORE_MIB = 24
FAILED_STATES = ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL")
MODEL = {"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 32, "sequence_length": 32}


@dataclass(frozen=True)
class Result:
    """An event and its cost.

    Attributes:
        lost_steps: Steps that were trained and repeated; None if the run did not restart.
        seconds: Time from the event to the next step of a later generation; None if the run did not restart.
    """

    event: str
    has_signal: bool
    lost_steps: int | None
    seconds: float | None


class Run:
    """A run on the cluster, operated with `trainstack`."""

    def __init__(self, cluster: Cluster, folder: Path, name: str, **slurm: Any) -> None:
        self.cluster, self.folder, self.name = cluster, folder, name
        self.file = folder / f"{name}.yaml"
        self._python = sys.executable
        settings = {
            "directory": str(folder / "shared"),
            "checkpoints": str(folder / "store"),
            "gres": "gpu:1",
            "partition": "train",
            "time_limit_minutes": 30,
            "signal_seconds": SIGNAL_SECONDS,
            "health_check": False,
            "host_python": self._python,
            "max_failures": 5,
        }
        self._document: dict[str, Any] = {
            "name": name,
            "engine": "slurm",
            "slurm": {**settings, **slurm},
            "capacity": {"nodes": 2},
            "node": {"python": {"interpreter": self._python}, "fabric": "tcp"},
            "training": {"run": name, "dataset": "text", "config": _training(10_000_000)},
        }

    def write(self, **sections: Any) -> None:
        """Write the deployment file."""
        self.file.write_text(yaml.safe_dump({**self._document, **sections}))

    def trainstack(self, *arguments: str, fails: bool = False) -> str:
        """Run a command of this project against the cluster."""
        return self.cluster.run(self._python, "-m", "trainstack", *arguments, fails=fails)

    def status(self) -> dict[str, Any]:
        """Return `trainstack status`."""
        text = self.trainstack("status", str(self.file), "--json")
        found: dict[str, Any] = json.loads([line for line in text.splitlines() if line.startswith("{")][0])
        return found

    @property
    def generations(self) -> Generations:
        """The run's generations."""
        return Generations(self.folder / "shared" / "runs" / self.name)

    def steps(self, generation: int) -> list[dict[str, Any]]:
        """Return the complete `step` records of a generation."""
        try:
            lines = (self.generations.folder(generation) / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [record for record in map(_record, lines) if record.get("record") == "step"]

    def newest(self) -> int:
        """Return the newest generation's number; 0 before the first."""
        return max(self.generations.numbers(), default=0)

    def job(self) -> str:
        """Return the number of the running job, once there is one."""
        options = ("--noheader", f"--name=trainstack-{self.name}", "--states=RUNNING", "--format=%i")
        found = wait_until(
            lambda: self.cluster.run("squeue", *options, fails=True).split(), f"{self.name}: a job runs", RESUME_SECONDS
        )
        return str(found[0])

    def wait_for_steps(self, count: int, after_generation: int = 0) -> tuple[int, float]:
        """Wait until a generation later than the given one has trained. Return the generation and the time of its first
        step."""

        def trained() -> tuple[int, float] | None:
            for number in self.generations.numbers():
                steps = self.steps(number)
                if number > after_generation and len(steps) >= count:
                    return number, float(steps[0]["unix_seconds"])
            return None

        found: tuple[int, float] = wait_until(trained, f"{self.name}: {count} steps", RESUME_SECONDS)
        return found


def _record(line: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:  # a line that is being written
        return {}
    return found


def _training(steps: int) -> dict[str, Any]:
    return {
        "steps": steps,
        "global_batch_size": 4,
        "micro_batch_size": 2,
        "threads": 1,
        "model": MODEL,
        "checkpoint": {"interval_steps": INTERVAL_STEPS},
        "schedule": {"kind": "constant"},
        "validation": {"interval_steps": 100_000_000, "batches": 1},
    }


def prepare_data(folder: Path) -> None:
    """Tokenize a small dataset, and mount the checkpoint store, which an event fills."""
    texts = folder / "texts"
    texts.mkdir(parents=True)
    for path in sorted(Path(json.__file__).parent.parent.glob("[a-d]*.py")):
        shutil.copy(path, texts / f"{path.name}.txt")
    output = str(folder / "shared" / "datasets")
    subprocess.run(
        [sys.executable, "-m", "training", "tokenize", "--input", str(texts), "--output", output]
        + ["--name", "text", "--vocabulary-size", "300"],
        check=True,
        capture_output=True,
        cwd=ROOT,
    )
    (folder / "store").mkdir()


class Events:
    """The events. Each returns True if the trainers received a signal in time, and None if the run must not restart."""

    def __init__(self, run: Run, chance: random.Random) -> None:
        self.run, self._chance = run, chance
        self._cluster = run.cluster

    def preemption(self) -> bool:
        """A job of a partition with a higher priority takes both nodes."""
        options = ("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null")
        self._cluster.run("sbatch", *options, f"--wrap=sleep {PREEMPTOR_SECONDS}")
        return True

    def signal(self) -> bool:
        """The user signals the job's steps."""
        self._cluster.run("scancel", "--signal=USR1", self.run.job())
        return True

    def time_limit(self) -> bool:
        """The time limit is about to be reached, so that Slurm itself sends the signal of `--signal`."""
        job = self.run.job()
        days, _, clock = self._cluster.job(job)["RunTime"].rpartition("-")
        hours, minutes, _ = map(int, clock.split(":"))
        elapsed = int(days or 0) * 1440 + hours * 60 + minutes
        self._cluster.run("scontrol", "update", f"JobId={job}", f"TimeLimit={elapsed + 2}")
        return True

    def controller_restart(self) -> bool:
        """The controller dies, and the job stops while it is down."""
        job = self.run.job()
        self._cluster.run("scancel", "--signal=USR1", job)
        self._cluster.stop_controller()
        time.sleep(self._chance.uniform(2, 6))  # the job stops while the controller is down
        self._cluster.start_controller()
        return True

    def node_death(self) -> bool:
        """A node dies without notice, and returns later."""
        name = self._chance.choice(["n1", "n2"])
        self._cluster.kill_node(name)
        time.sleep(15)  # the node is away for longer than a restart of the trainers
        self._cluster.start_node(name)
        return False

    def full_disk(self) -> bool:
        """The checkpoint store is full until a save has failed."""
        generation = self.run.newest()
        filler = self.run.folder / "store" / "filler"
        subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=64k"], capture_output=True)
        try:
            wait_until(lambda: self.run.generations.end(generation), "a save fails", RESUME_SECONDS)
        finally:
            filler.unlink()
        return False

    def killed_rank(self) -> bool:
        """A trainer process is killed."""
        name = self._chance.choice(["n1", "n2"])
        process = self._cluster.on_node(
            name, "pkill", "-KILL", "--oldest", "-f", "python[^ ]* -m training train", log=self.run.folder / "pkill.log"
        )
        process.wait()
        return False


KINDS = ("preemption", "signal", "time_limit", "controller_restart", "node_death", "full_disk", "killed_rank")
WEIGHTS = (8, 5, 3, 3, 3, 2, 2)


def perform(run: Run, kind: str, chance: random.Random) -> Result:
    """Perform one event on a training run, and return its cost after the run has resumed."""
    generation, _ = run.wait_for_steps(20, run.newest() - 1)
    time.sleep(chance.uniform(0.5, 3))  # events must come at random moments of a step
    started = time.time()
    event: Callable[[], bool] = getattr(Events(run, chance), kind)
    has_signal = event()
    later, first_step = run.wait_for_steps(1, generation)
    trained = [int(each["step"]) for number in range(generation, later) for each in run.steps(number)]
    resumed = int(run.steps(later)[0]["step"])
    return Result(kind, has_signal, max(trained) + 1 - resumed, first_step - started)


def campaign(cluster: Cluster, folder: Path, events: int, seed: int, continue_by: str) -> dict[str, Any]:
    """Run random events, and return the results and the states of all jobs."""
    chance = random.Random(seed)
    run = Run(cluster, folder, f"events-{continue_by}", continue_by=continue_by)
    run.write()
    run.trainstack("up", str(run.file), "--no-follow")
    kinds = [*KINDS, *chance.choices(KINDS, WEIGHTS, k=max(0, events - len(KINDS)))][:events]
    chance.shuffle(kinds)
    results = []
    states: dict[str, str] = {}
    for kind in kinds:
        result = perform(run, kind, chance)
        results.append(result)
        states |= _states(cluster, run.name)
        print(f"{kind:<20} lost {result.lost_steps:>4} steps, next step after {result.seconds:5.1f} s", flush=True)
    run.trainstack("stop", str(run.file))
    states |= _states(cluster, run.name)
    failed = sorted(number for number, state in states.items() if state in FAILED_STATES)
    return {
        "continue_by": continue_by,
        "events": [asdict(each) for each in results],
        "jobs": len(states),
        "failed_jobs": {number: states[number] for number in failed},
        "lost_with_signal": sum(each.lost_steps or 0 for each in results if each.has_signal),
        "most_lost_without": max((each.lost_steps or 0 for each in results if not each.has_signal), default=0),
        "preemption_seconds": sorted(each.seconds or 0.0 for each in results if each.event == "preemption"),
        "phase": run.status()["phase"],
    }


def _states(cluster: Cluster, name: str) -> dict[str, str]:
    """Return the final states of a run's jobs. The controller forgets them after MinJobAge."""
    text = cluster.run("scontrol", "--oneliner", "show", "job", fails=True)
    found = {}
    for line in text.splitlines():
        values = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if values.get("JobName") == f"trainstack-{name}":
            found[values["JobId"]] = values["JobState"]
    return found


def sweep(cluster: Cluster, folder: Path) -> dict[str, Any]:
    """Run a sweep of nine settings as a job array, signal one of its tasks, and return the results."""
    values = {"optimizer.learning_rate": [0.001, 0.002, 0.004], "seed": [1, 2, 3]}
    run = Run(cluster, folder, "sweep", sweep=values, sweep_parallel=4, exclusive=False, cpus_per_node=1)
    run.write(capacity={"nodes": 1}, training={"run": "sweep", "dataset": "text", "config": _training(300)})
    script = run.trainstack("slurm", "script", str(run.file))
    tested = folder / "sweep.sh"
    tested.write_text(script[script.index("#!/bin/bash") :])
    accepted = cluster.run("sbatch", "--test-only", str(tested))
    run.trainstack("up", str(run.file), "--no-follow")

    def ended() -> Any:
        members = run.status()["members"]
        return members if all(each["phase"] == "ended" for each in members) else None

    members = wait_until(ended, "the sweep has finished", 900)
    settings = set()
    for index in range(9):
        config = json.loads((folder / "shared" / "runs" / f"sweep-{index}" / "run.json").read_text())
        settings.add((config["optimizer"]["learning_rate"], config["seed"]))
    states = _states(cluster, "sweep")
    return {
        "accepted": accepted,
        "distinct_settings": len(settings),
        "finished": sum(each["cause"] == "finished" for each in members),
        "steps": sorted({each["step"] for each in members}),
        "losses": len({each["loss"] for each in members}),
        "states": sorted(set(states.values())),
    }


__all__ = ["ClusterError", "campaign", "prepare_data", "sweep"]
