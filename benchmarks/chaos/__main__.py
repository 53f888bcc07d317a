"""Kill trainers and break their storage for some minutes, and hold the promise against it.

Runs of two and of four ranks, on a directory, on S3 and on both as tiers, are interrupted at random points until they
are done; then the final state, weights and optimizer and random generators, must have the same bits as that of a run
nobody disturbed. Some cycles go through real supervisors and torchrun. What a cycle does follows from the seed and its
number.

Prints a table by fault and writes it as JSON. Exit code 1: a violation, or too few interruptions to say anything.
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

from benchmarks.chaos.campaign import CONFIG, Campaign, Reference, unbroken
from benchmarks.chaos.faults import FAULTS
from benchmarks.chaos.faulty_s3 import FaultyS3
from benchmarks.chaos.ranks import WarmParent
from benchmarks.chaos.supervised import NODES, RUN, Account, SupervisedRun
from benchmarks.chaos.tally import Report
from benchmarks.local_moto import client_options, local_moto
from training.checkpoint.backend import open_backend
from training.checkpoint.s3 import S3Backend

CYCLES_PER_RUN = 30
PATIENCE = 3.0
BUCKET = "chaos"
SUPERVISED_STEPS_PER_CYCLE = 180
"""How far a run must be able to go between two faults, machines being found silent and started meanwhile."""
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
            befallen = dict(experiment.s3.done)
    print(report.table())
    print("requests to S3 befallen: " + (", ".join(f"{count} {fault}" for fault, count in befallen.items()) or "none"))
    for problem in report.problems:
        print(f"VIOLATION {problem}")
    if restarts:
        print(f"fault to next step under supervisors and torchrun: median {median(restarts):.1f} s")
    enough = report.cycles >= options.least_cycles
    print(
        f"{report.cycles} interruptions (at least {options.least_cycles}), {report.kills} processes killed, "
        f"{report.runs_compared} runs compared bit by bit, {report.near_resumes} starts from what was near only, "
        f"{report.violations} violations, "
        f"{time.monotonic() - started:.0f} s; seed {seed}"
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "seed": seed,
        "seconds": time.monotonic() - started,
        "least_cycles": options.least_cycles,
        "restart_seconds": restarts,
    }
    options.output.write_text(
        json.dumps({**document, "s3_requests_befallen": befallen, **report.document()}, indent=2) + "\n",
        encoding="utf-8",
    )
    return 0 if enough and not report.violations else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    faults = sorted({fault for kind in FAULTS.values() for fault in kind})
    parser.add_argument("--seed", type=int, help="of all choices; random unless given")
    parser.add_argument(
        "--minutes",
        type=float,
        default=8.0,
        help=f"when to stop, once --least-cycles are done; at the latest after {PATIENCE:g} times as long (default 8)",
    )
    parser.add_argument("--cycles", type=int, help="stop after so many cycles of forked ranks")
    parser.add_argument(
        "--supervised-cycles", type=int, default=15, help="faults at real supervisors and torchrun (default 15)"
    )
    parser.add_argument("--steps", type=int, default=300, help="length of a run of forked ranks (default 300)")
    parser.add_argument("--fault", choices=faults, help="do only this one")
    parser.add_argument("--least-cycles", type=int, default=300, help="fewer interruptions are a failure (default 300)")
    parser.add_argument("--directory", type=Path, help="where temporary files go; default: the system's place")
    parser.add_argument("--output", type=Path, default=Path("build/bench/chaos.json"), help="where the JSON goes")
    return parser


def make_dataset(root: Path) -> Path:
    """Make a small dataset of sentences with some structure to learn."""
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
        raise RuntimeError("the dataset could not be made")
    return root / "words"


class Experiment:
    """Campaign after campaign."""

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
        self._cycles = 0
        self._given_up = threading.Event()
        self._started = time.monotonic()

    def run(self, until_monotonic: float) -> None:
        """Run campaigns until the time or the cycles are up, and the supervised part beside them: it waits a lot."""
        with ThreadPoolExecutor(1, thread_name_prefix="supervised") as pool:
            if not self._options.supervised_cycles:
                self._campaigns(until_monotonic)
                return
            supervised = pool.submit(self._supervised, until_monotonic)
            try:
                self._campaigns(until_monotonic)
            except BaseException:
                self._given_up.set()
                self._parent.close()
                raise
            supervised.result()

    def _supervised(self, until_monotonic: float) -> None:
        # Its unbroken run is the longest, and waits for its steps: no reason for the campaigns to wait too.
        self._supervised_run().run(self._options.supervised_cycles, until_monotonic, self._show)

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
            reference=unbroken(self._parent, self._root, NODES, config),
            backend=S3Backend(BUCKET, f"runs/{RUN}/checkpoints", account.s3),
            report=self._report,
            seed=f"{self._seed}-supervised",
            restart_seconds=self.restart_seconds,
            given_up=self._given_up,
        )

    def _campaign(self, number: int, world_size: int, kind: str, until_monotonic: float) -> None:
        if world_size not in self._references:
            self._references[world_size] = unbroken(self._parent, self._root, world_size, self._config)
        name = f"{self._seed}-{number}"
        on_s3 = kind != "directory"
        near = self._root / f"{name}-near" if kind == "tiers" else None
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
            url=url if near is None else f"{near},{url}",
            s3=self.s3 if on_s3 else None,
            near=near,
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
        enough = self._report.cycles >= self._options.least_cycles
        return now >= until_monotonic and (
            enough or now >= self._started + PATIENCE * (until_monotonic - self._started)
        )

    def _show(self) -> None:
        told = f"{self._report.cycles} interruptions, {self._report.violations} violations"
        sys.stderr.write(f"{time.monotonic() - self._started:5.0f} s: {told}\n")


@contextmanager
def _experiment(
    root: Path, dataset: Path, seed: int, options: argparse.Namespace, report: Report
) -> Iterator[Experiment]:
    with local_moto() as url, closing(FaultyS3(url, str(seed))) as faulty, closing(WarmParent(root, dataset)) as parent:
        boto3.client("s3", **client_options(url)).create_bucket(Bucket=BUCKET)
        yield Experiment(parent, root, dataset, seed, options, report, faulty, url)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that all that runs is ended
    sys.exit(main())
