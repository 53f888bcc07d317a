"""Whether a revision trains slower than another: `python -m benchmarks.perf_gate BASE [HEAD]`.

Both are checked out beside each other, and each trains in a process of its own, in turns of a few steps. A process is
faster or slower than its twin by where its memory lies, so several pairs of processes are started, and the spread
between pairs decides how sure the ratio is. Ends with 1 if the new revision is slower beyond that: one-sided 95 %, so
that identical code is called slower at most once in 20 times. Writes build/bench/perf_gate.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.pairs import in_turns, ratio_of

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY_SIZE = 2048
CONFIG: dict[str, Any] = {
    "global_batch_sequences": 8,
    "micro_batch_sequences": 4,
    "model": {"layers": 2, "heads": 4, "embedding": 128, "context": 64},
    "threads": 1,
}
STUDENT_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753)
"""One-sided 95 % quantiles of Student's t distribution for 1, 2, ... degrees of freedom (any table)."""
WARM_STEPS = 10
MUST_CATCH = 1.05
MOST_FALSE_ALARMS, LEAST_CAUGHT = 0.05, 0.95


@dataclass(frozen=True)
class Verdict:
    """What the pairs of processes say.

    Attributes:
        slowdown: steps of the new revision take so many times those of the base.
        lower_95: one-sided lower bound of it.
        is_slower: whether even that is more than 1.
        pairs: ratio of each pair of processes.
    """

    slowdown: float
    lower_95: float
    is_slower: bool
    pairs: list[float]


def judge(ratios: Sequence[float]) -> Verdict:
    """Judge the ratios of several pairs of processes: Student's t on their logarithms.

    Args:
        ratios: 2 to 16 of them, new over base.
    """
    logs = [math.log(ratio) for ratio in ratios]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    lower = math.exp(mean - STUDENT_95[len(logs) - 2] * error)
    return Verdict(math.exp(mean), lower, lower > 1.0, list(ratios))


class Worker:
    """A process that trains with the code of a folder, when told to."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "training.bench.turns", json.dumps(config), str(VOCABULARY_SIZE)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._answer()
        self.seconds_of(WARM_STEPS)

    def seconds_of(self, steps: int) -> float:
        """Take steps; return the seconds of all of them."""
        assert self._process.stdin is not None, "it was opened with a pipe"
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        seconds: list[float] = self._answer()["seconds"]
        return sum(seconds)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "it was opened with a pipe"
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            sys.exit(f"a trainer ended with {self._process.wait()}:\n{self._errors.read()}")
        return json.loads(line)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let it end."""
        self._process.communicate()
        self._errors.close()


def ratios_of(base: Path, new: Path, processes: int, turns: int, steps: int) -> list[float]:
    """Measure the code of two folders against each other: new over base, for each pair of processes.

    Args:
        base: folder of the one.
        new: folder of the other.
        processes: pairs of processes.
        turns: of each pair.
        steps: of each turn.
    """
    ratios = []
    for number in range(processes):
        with ExitStack() as stack:
            # Which one starts first alternates: the second finds files in the page cache.
            first, second = (new, base) if number % 2 else (base, new)
            workers = {}
            for folder in (first, second):
                worker = Worker(folder, CONFIG)
                stack.callback(worker.close)
                workers[folder == new] = worker
            new_steps, base_steps = (partial(workers[is_new].seconds_of, steps) for is_new in (True, False))
            pairs = in_turns(new_steps, base_steps, turns)
        ratios.append(ratio_of(pairs).value)
        sys.stderr.write(f"pair {number + 1} of {processes}: {ratios[-1]:.4f}\n")
    return ratios


@dataclass(frozen=True)
class Rates:
    """How the verdict does, by drawing its pairs again and again from ratios of code with itself.

    Attributes:
        ratios: that were measured.
        false_alarms: share of the draws in which it is called slower.
        caught: share of them in which it is, when each ratio is made `slowdown` times as large.
        slowdown: what is to be caught.
    """

    ratios: list[float]
    false_alarms: float
    caught: float
    slowdown: float


def rates_of(ratios: Sequence[float], processes: int, slowdown: float, draws: int = 10_000) -> Rates:
    """Judge draws of so many of the ratios, as they are and slowed down."""
    source = random.Random(0)  # noqa: S311
    alarms = caught = 0
    for _ in range(draws):
        drawn = source.sample(list(ratios), processes)
        alarms += judge(drawn).is_slower
        caught += judge([ratio * slowdown for ratio in drawn]).is_slower
    return Rates(list(ratios), alarms / draws, caught / draws, slowdown)


@contextmanager
def checked_out(revision: str | None) -> Iterator[Path]:
    """A folder with the code of a revision; None: the working tree as it is."""
    if revision is None:
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision, "training"], cwd=ROOT, capture_output=True)
        if archive.returncode != 0:
            sys.exit(f"{revision}: cannot be checked out: {archive.stderr.decode().strip()}; name a commit")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        if not (Path(folder) / "training" / "bench" / "turns.py").exists():
            sys.exit(f"{revision}: is older than training/bench/turns.py, by which it is measured; name a later one")
        yield Path(folder)


def main(arguments: list[str] | None = None) -> int:
    """Compare; return 1 if the new revision is slower."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.perf_gate", description=__doc__)
    parser.add_argument("base", help="revision that is the measure")
    parser.add_argument("head", nargs="?", help="revision that is judged; default: the working tree")
    parser.add_argument("--processes", type=int, choices=range(2, 17), default=8, metavar="2..16", help="pairs of them")
    parser.add_argument("--turns", type=int, default=40, help="turns of each pair of processes")
    parser.add_argument("--steps", type=int, default=3, help="steps of a turn")
    parser.add_argument(
        "--rates",
        type=int,
        metavar="PAIRS",
        help="measure the gate instead: BASE against itself in so many pairs (32, say), how often it would be called "
        "slower, and how often it would with steps of 1.05 times the time",
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench/perf_gate.json"))
    options = parser.parse_args(arguments)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    if options.rates is not None:
        return _measure_rates(parser, options)
    with checked_out(options.base) as base, checked_out(options.head) as new:
        verdict = judge(ratios_of(base, new, options.processes, options.turns, options.steps))
    options.output.write_text(json.dumps(asdict(verdict), indent=2) + "\n", encoding="utf-8")
    word = "SLOWER" if verdict.is_slower else "not slower"
    sys.stdout.write(
        f"{word}: a step takes {verdict.slowdown:.4f} times as long as that of {options.base} (at least "
        f"{verdict.lower_95:.4f} with 95 % confidence)\n"
    )
    return 1 if verdict.is_slower else 0


def _measure_rates(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if options.rates < 2 * options.processes:
        parser.error(f"--rates {options.rates}: needs at least twice the {options.processes} pairs of a verdict")
    with checked_out(options.base) as first, checked_out(options.base) as second:
        ratios = ratios_of(first, second, options.rates, options.turns, options.steps)
    rates = rates_of(ratios, options.processes, MUST_CATCH)
    options.output.with_stem("perf_gate_rates").write_text(json.dumps(asdict(rates), indent=2) + "\n", encoding="utf-8")
    met = rates.false_alarms <= MOST_FALSE_ALARMS and rates.caught >= LEAST_CAUGHT
    sys.stdout.write(
        f"identical code is called slower in {rates.false_alarms:.3f} of draws of {options.processes} out of "
        f"{options.rates} pairs (at most {MOST_FALSE_ALARMS}); {rates.slowdown - 1:.0%} are caught in "
        f"{rates.caught:.3f} (at least {LEAST_CAUGHT}): {'met' if met else 'NOT met'}\n"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
