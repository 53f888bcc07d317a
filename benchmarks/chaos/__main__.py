"""Kill trainers and break their storage for a few minutes, and check the checkpoint guarantees.

Runs with two or four ranks, which save to a directory, to S3 or to both as tiers, are interrupted at random points
until they finish. Then the final state (weights, optimizer and random number generators) must match an uninterrupted
run's state bit for bit. Some cycles use real supervisors and launchers. The seed and a cycle's number determine its
fault.

Prints a table of the results by fault, and writes it as JSON. Exits with 1 after a violation, or after too few
interruptions.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

import boto3

from benchmarks.chaos.campaign import CONFIG, Campaign, Reference, train_reference
from benchmarks.chaos.faults import FAULTS
from benchmarks.chaos.faulty_s3 import FaultyS3
from benchmarks.chaos.ranks import WarmParent
from benchmarks.chaos.supervised import DEPLOYMENT, NODES, RUN, Account, SupervisedRun
from benchmarks.chaos.tally import Report
from benchmarks.servers.local_moto import client_options, local_moto
from bootstrap.documents.object_keys import run_prefix
from training.checkpoint.storage.s3 import S3Backend
from training.checkpoint.storage.urls import open_backend

CYCLES_PER_RUN = 30
PATIENCE = 3.0
BUCKET = "chaos"
SUPERVISED_STEPS_PER_CYCLE = 180
"""Number of run steps per fault, enough to keep the run training while machines are declared dead and replaced."""
WORDS = "loss of node is no work when each step was saved and read again in the same order as before".split()  # noqa: SIM905
KINDS = ((2, "directory"), (2, "s3"), (4, "directory"), (2, "tiers"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; return the exit code."""
    options = _parser().parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    report = Report()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-", dir=options.directory) as folder:
        root = Path(folder)
        dataset = make_dataset(root)
        with _experiment(root, dataset, seed, options, report) as experiment:
            experiment.run(started + options.minutes * 60.0)
            restarts = experiment.restart_seconds
            s3_faults = dict(experiment.s3.done)
            garbage_objects = experiment.garbage_objects
    print(report.table())
    print("faults of S3: " + (", ".join(f"{count} {fault}" for fault, count in s3_faults.items()) or "none"))
    print(f"objects added to the supervised run's control records and log: {garbage_objects}")
    for problem in report.problems:
        print(f"VIOLATION {problem}")
    if restarts:
        print(f"time from a fault to the next step, with supervisors: median {median(restarts):.1f} s")
    enough = report.cycles >= options.min_cycles
    print(
        f"{report.cycles} interruptions (at least {options.min_cycles}), {report.kills} processes killed, "
        f"{report.runs_compared} runs compared bit by bit, {report.local_resumes} resumed from the local tier, "
        f"{report.violations} violations, "
        f"{time.monotonic() - started:.0f} s; seed {seed}"
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "seed": seed,
        "seconds": time.monotonic() - started,
        "min_cycles": options.min_cycles,
        "restart_seconds": restarts,
        "garbage_objects": garbage_objects,
    }
    options.output.write_text(
        json.dumps({**document, "s3_faults": s3_faults, **report.document()}, indent=2) + "\n",
        encoding="utf-8",
    )
    return 0 if enough and not report.violations else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    faults = sorted({fault for kind in FAULTS.values() for fault in kind})
    parser.add_argument("--seed", type=int, help="seed for all choices (default: random)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=8.0,
        help=f"stop after this time if --min-cycles cycles are done, else after {PATIENCE:g} times as long (default 8)",
    )
    parser.add_argument("--cycles", type=int, help="stop after this many cycles with forked ranks")
    parser.add_argument(
        "--supervised-cycles", type=int, default=15, help="faults with real supervisors and launchers (default 15)"
    )
    parser.add_argument(
        "--garbage", type=int, default=1000, help="objects to add to the supervised run's records (default 1000)"
    )
    parser.add_argument("--steps", type=int, default=300, help="steps in a run of forked ranks (default 300)")
    parser.add_argument("--fault", choices=faults, help="use only this fault")
    parser.add_argument("--min-cycles", type=int, default=300, help="minimum number of interruptions (default 300)")
    parser.add_argument("--directory", type=Path, help="directory for temporary files (default: the system's)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/chaos.json"), help="path of the JSON report")
    return parser


def make_dataset(root: Path) -> Path:
    """Create a small dataset of sentences whose structure a model can learn."""
    from training.__main__ import main as training

    text = root / "text"
    text.mkdir()
    for number in range(30):
        lines = [
            " ".join(WORDS[(number * 7 + line * 3 + word * word) % len(WORDS)] for word in range(12))
            for line in range(60)
        ]
        (text / f"file-{number}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    arguments = ["--input", str(text), "--output", str(root), "--name", "words", "--vocabulary-size", "300"]
    if training(["tokenize", *arguments, "--workers", "1", "--validation-share", "0.2"]) != 0:
        raise RuntimeError("cannot create the dataset")
    return root / "words"


class Experiment:
    """Runs campaigns one at a time."""

    def __init__(
        self,
        parent: WarmParent,
        root: Path,
        dataset: Path,
        seed: int,
        options: argparse.Namespace,
        report: Report,
        s3: FaultyS3,
        url: str,
    ) -> None:
        self._parent = parent
        self._root = root
        self._dataset = dataset
        self._seed = seed
        self._options = options
        self._report = report
        self.s3 = s3
        self._s3_url = url
        self._references: dict[int, Reference] = {}
        self._config = {**CONFIG, "steps": options.steps}
        self.restart_seconds: list[float] = []
        self.garbage_objects = 0
        self._cycles = 0
        self._aborted = threading.Event()
        self._started = time.monotonic()

    def run(self, until_monotonic: float) -> None:
        """Run campaigns up to the time or cycle limit, in parallel with the supervised part, which mostly waits."""
        with ThreadPoolExecutor(1, thread_name_prefix="supervised") as pool:
            if not self._options.supervised_cycles:
                self._campaigns(until_monotonic)
                return
            supervised = pool.submit(self._supervised, until_monotonic)
            try:
                self._campaigns(until_monotonic)
            except BaseException:
                self._aborted.set()
                self._parent.close()
                raise
            supervised.result()

    def _supervised(self, until_monotonic: float) -> None:
        # Its reference run is the longest, and the campaigns need not wait for it.
        supervised = self._supervised_run()
        try:
            supervised.run(self._options.supervised_cycles, until_monotonic, self._show)
        finally:
            self.garbage_objects = supervised.garbage_objects

    def _campaigns(self, until_monotonic: float) -> None:
        number = 0
        while not self._is_over(until_monotonic):
            world_size, kind = KINDS[number % len(KINDS)]
            if self._options.fault is None or self._options.fault in FAULTS[kind]:  # type: ignore[index]
                self._campaign(number, world_size, kind, until_monotonic)
            number += 1

    def _supervised_run(self) -> SupervisedRun:
        config = {**CONFIG, "steps": SUPERVISED_STEPS_PER_CYCLE * (self._options.supervised_cycles + 1)}
        keys = client_options(self._s3_url)
        account = Account(
            boto3.client("s3", **keys), boto3.client("ssm", **keys), boto3.client("logs", **keys), BUCKET, self._s3_url
        )
        return SupervisedRun(
            folder=self._root / "machines",
            account=account,
            code=account.fill(self._dataset),
            dataset=self._dataset.name,
            config=config,
            reference=train_reference(self._parent, self._root, NODES, config),
            backend=S3Backend(BUCKET, f"{run_prefix(DEPLOYMENT, RUN)}/checkpoints", account.s3),
            report=self._report,
            seed=f"{self._seed}-supervised",
            restart_seconds=self.restart_seconds,
            aborted=self._aborted,
            garbage_objects=self._options.garbage,
        )

    def _campaign(self, number: int, world_size: int, kind: str, until_monotonic: float) -> None:
        if world_size not in self._references:
            self._references[world_size] = train_reference(self._parent, self._root, world_size, self._config)
        name = f"{self._seed}-{number}"
        on_s3 = kind != "directory"
        local_tier = self._root / f"{name}-local" if kind == "tiers" else None
        url = f"s3://{BUCKET}/{name}" if on_s3 else str(self._root / f"{name}-checkpoints")
        campaign = Campaign(
            name=name,
            parent=self._parent,
            root=self._root,
            config=self._config,
            world_size=world_size,
            reference=self._references[world_size],
            report=self._report,
            backend=S3Backend(BUCKET, name, boto3.client("s3", **client_options(self._s3_url)))
            if on_s3
            else open_backend(url),
            url=url if local_tier is None else f"{local_tier},{url}",
            s3=self.s3 if on_s3 else None,
            local_tier=local_tier,
        )
        try:
            for cycle in range(CYCLES_PER_RUN):
                done = campaign.cycle(cycle, self._options.fault)
                self._cycles += 1
                self._show()
                if done or self._is_over(until_monotonic):
                    break
            campaign.finish()
        finally:
            campaign.close()

    def _is_over(self, until_monotonic: float) -> bool:
        limit, now = self._options.cycles, time.monotonic()
        if limit is not None and self._cycles >= limit:
            return True
        enough = self._report.cycles >= self._options.min_cycles
        return now >= until_monotonic and (
            enough or now >= self._started + PATIENCE * (until_monotonic - self._started)
        )

    def _show(self) -> None:
        counts = f"{self._report.cycles} interruptions, {self._report.violations} violations"
        sys.stderr.write(f"{time.monotonic() - self._started:5.0f} s: {counts}\n")


@contextmanager
def _experiment(
    root: Path, dataset: Path, seed: int, options: argparse.Namespace, report: Report
) -> Iterator[Experiment]:
    with local_moto() as url, closing(FaultyS3(url, str(seed))) as faulty, closing(WarmParent(root, dataset)) as parent:
        boto3.client("s3", **client_options(url)).create_bucket(Bucket=BUCKET)
        yield Experiment(parent, root, dataset, seed, options, report, faulty, url)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # runs the clean-up
    sys.exit(main())
