"""Check that a revision trains as fast as another: `python -m benchmarks.perf_gate BASE [HEAD]`.

Both revisions are checked out and train in separate processes, which alternate every few steps. Memory placement makes
some processes faster than others even with the same code. Several pairs of processes are therefore started, and the
spread between pairs determines the confidence bound. Exits with 1 if the new revision is significantly slower
(one-sided, 95%), so identical code fails at most 1 time in 20. Writes build/bench/perf_gate.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.interleaved import mean_ratio, ratio_of, time_interleaved

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY_SIZE = 2048
CONFIG: dict[str, Any] = {
    "global_batch_size": 8,
    "micro_batch_size": 4,
    "model": {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128, "sequence_length": 64},
    "threads": 1,
}
WARM_STEPS = 10
MUST_CATCH = 1.05
MAX_FALSE_ALARMS, MIN_CAUGHT = 0.05, 0.95


@dataclass(frozen=True)
class Verdict:
    """Result of a comparison.

    Attributes:
        slowdown: duration of a step in the new revision relative to the base.
        lower_95: one-sided lower bound on the slowdown.
        is_slower: whether the lower bound is above 1.
        pairs: ratio for each pair of processes.
    """

    slowdown: float
    lower_95: float
    is_slower: bool
    pairs: list[float]


def judge(ratios: Sequence[float]) -> Verdict:
    """Test whether the process pairs' ratios are above 1, using Student's t-test on their logarithms.

    Args:
        ratios: 2 to 16 ratios, new to base.
    """
    slowdown = mean_ratio(ratios)
    return Verdict(slowdown.value, slowdown.lower_95, slowdown.lower_95 > 1.0, list(ratios))


class Worker:
    """A process that trains on request, with the code from a folder."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "training.bench.interleaved", json.dumps(config), str(VOCABULARY_SIZE)]
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
        self._read_response()
        self.seconds_of(WARM_STEPS)

    def seconds_of(self, steps: int) -> float:
        """Take steps; return their total duration in seconds."""
        assert self._process.stdin is not None, "the process has a pipe"
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        seconds: list[float] = self._read_response()["seconds"]
        return sum(seconds)

    def _read_response(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "the process has a pipe"
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            sys.exit(f"a trainer exited with {self._process.wait()}:\n{self._errors.read()}")
        return json.loads(line)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Wait for the process to exit."""
        self._process.communicate()
        self._errors.close()


def ratios_of(base: Path, new: Path, processes: int, rounds: int, steps: int) -> list[float]:
    """Measure the slowdown of new relative to base in each pair of processes.

    Args:
        base: folder with the base revision.
        new: folder with the new revision.
        processes: number of process pairs.
        rounds: number of measurements per pair.
        steps: number of steps per measurement.
    """
    ratios = []
    for number in range(processes):
        with ExitStack() as stack:
            # Alternate the start order, since the files of the process that starts second are already in the page
            # cache.
            first, second = (new, base) if number % 2 else (base, new)
            workers = {}
            for folder in (first, second):
                worker = Worker(folder, CONFIG)
                stack.callback(worker.close)
                workers[folder == new] = worker
            new_steps, base_steps = (partial(workers[is_new].seconds_of, steps) for is_new in (True, False))
            pairs = time_interleaved(new_steps, base_steps, rounds)
        ratios.append(ratio_of(pairs).value)
        sys.stderr.write(f"pair {number + 1} of {processes}: {ratios[-1]:.4f}\n")
    return ratios


@dataclass(frozen=True)
class Rates:
    """The gate's error rates, from repeated draws of ratios measured with identical code.

    Attributes:
        ratios: ratios that were measured with identical code.
        false_alarms: share of draws judged slower.
        caught: share of draws judged slower after multiplying each ratio by `slowdown`.
        slowdown: slowdown that the gate must detect.
    """

    ratios: list[float]
    false_alarms: float
    caught: float
    slowdown: float


def rates_of(ratios: Sequence[float], processes: int, slowdown: float, draws: int = 10_000) -> Rates:
    """Estimate the error rates from draws of ``processes`` ratios, unchanged and slowed down."""
    source = random.Random(0)  # noqa: S311
    alarms = caught = 0
    for _ in range(draws):
        drawn = source.sample(list(ratios), processes)
        alarms += judge(drawn).is_slower
        caught += judge([ratio * slowdown for ratio in drawn]).is_slower
    return Rates(list(ratios), alarms / draws, caught / draws, slowdown)


@contextmanager
def checked_out(revision: str | None) -> Iterator[Path]:
    """Yield a folder with a revision's code; None: the working tree's code."""
    if revision is None:
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision, "training"], cwd=ROOT, capture_output=True)
        if archive.returncode != 0:
            sys.exit(f"{revision}: cannot check it out: {archive.stderr.decode().strip()}; name a commit")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        if not (Path(folder) / "training" / "bench" / "interleaved.py").exists():
            sys.exit(f"{revision}: has no training/bench/interleaved.py to measure it with; name a later commit")
        yield Path(folder)


def main(arguments: list[str] | None = None) -> int:
    """Compare two revisions; return 1 if the new one is slower."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.perf_gate", description=__doc__)
    parser.add_argument("base", help="base revision")
    parser.add_argument("head", nargs="?", help="revision to check (default: the working tree)")
    parser.add_argument("--processes", type=int, choices=range(2, 17), default=8, metavar="2..16", help="process pairs")
    parser.add_argument("--rounds", type=int, default=40, help="measurements per pair of processes")
    parser.add_argument("--steps", type=int, default=3, help="steps per measurement")
    parser.add_argument(
        "--rates",
        type=int,
        metavar="PAIRS",
        help="measure the gate's error rates: compare BASE with itself in this many pairs (for example 32), and "
        "estimate how often it is judged slower, unchanged and with steps that take 1.05 times as long",
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench/perf_gate.json"))
    options = parser.parse_args(arguments)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    if options.rates is not None:
        return _measure_rates(parser, options)
    with checked_out(options.base) as base, checked_out(options.head) as new:
        verdict = judge(ratios_of(base, new, options.processes, options.rounds, options.steps))
    options.output.write_text(json.dumps(asdict(verdict), indent=2) + "\n", encoding="utf-8")
    word = "SLOWER" if verdict.is_slower else "not slower"
    sys.stdout.write(
        f"{word}: a step takes {verdict.slowdown:.4f} times as long as with {options.base} (95% lower bound "
        f"{verdict.lower_95:.4f})\n"
    )
    return 1 if verdict.is_slower else 0


def _measure_rates(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if options.rates < 2 * options.processes:
        parser.error(f"--rates {options.rates}: must be at least twice --processes {options.processes}")
    with checked_out(options.base) as first, checked_out(options.base) as second:
        ratios = ratios_of(first, second, options.rates, options.rounds, options.steps)
    rates = rates_of(ratios, options.processes, MUST_CATCH)
    options.output.with_stem("perf_gate_rates").write_text(json.dumps(asdict(rates), indent=2) + "\n", encoding="utf-8")
    met = rates.false_alarms <= MAX_FALSE_ALARMS and rates.caught >= MIN_CAUGHT
    sys.stdout.write(
        f"false alarms in {rates.false_alarms:.3f} of draws of {options.processes} from {options.rates} pairs (at "
        f"most {MAX_FALSE_ALARMS}); slowdowns of {rates.slowdown - 1:.0%} detected in {rates.caught:.3f} (at least "
        f"{MIN_CAUGHT}): {'met' if met else 'NOT met'}\n"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
