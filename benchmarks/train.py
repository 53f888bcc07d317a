"""Overhead of the trainer compared with a minimal loop: `python -m benchmarks.train`.

Writes build/bench/train.json with three comparisons. The first compares interleaved step times of the trainer and a
minimal loop with the same model on new data, eager and compiled, in several processes each, and includes the share of
step time spent waiting for data. The others compare the throughput of one process with two, and of this project's
loader with torch's DataLoader. Exits with 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks import loader
from benchmarks.bare_loop import BareLoop
from benchmarks.interleaved import mean_ratio, ratio_of, time_interleaved
from training.bench.interleaved import NEVER_STEPS, open_loop, time_steps
from training.bench.synthetic import write_dataset
from training.config import TrainingConfig

VOCABULARY_SIZE = 2048
WARM_STEPS = 10
OVERHEAD_BOUND = 1.03
DATA_SHARE_BOUND = 0.01
LOADER_BOUND = 100e6
PROCESS_STEPS, PROCESS_WARM_STEPS, PROCESS_ROUNDS = 80, 20, 2
"""Settings for comparing one process with two."""
CONFIG: dict[str, Any] = {
    "steps": NEVER_STEPS,
    "global_batch_size": 8,
    "micro_batch_size": 4,
    "model": {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 128, "sequence_length": 64},
    "optimizer": {"learning_rate": 3e-4},
    "schedule": {"kind": "constant"},
    "checkpoint": {"interval_steps": NEVER_STEPS},
    "validation": {"interval_steps": NEVER_STEPS},
}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train", description=__doc__)
    parser.add_argument("--processes", type=int, default=6, help="processes, for both eager and compiled (2 to 16)")
    parser.add_argument("--pairs", type=int, default=150, help="pairs of steps in each process")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="CPU threads")
    parser.add_argument("--output", type=Path, default=Path("build/bench/train.json"))
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {
        "config": CONFIG,
        "threads": options.threads,
        "torch": str(torch.__version__),
        "eager": _against_bare(options.processes, options.pairs, options.threads, compiled=False),
        "compiled": _against_bare(options.processes, options.pairs, options.threads, compiled=True),
    }
    _log("one process and two")
    results["processes"] = _tokens_per_second_by_processes(options.threads)
    _log("the loader")
    results["loader"] = asdict(loader.measure())
    results["bounds"] = _bounds(results)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    _print(results)
    return 0 if all(bound["met"] for bound in results["bounds"]) else 1


@dataclass(frozen=True)
class Measured:
    """What one process has measured.

    Attributes:
        pairs: durations in seconds of a step of the trainer and of the minimal loop.
        data_seconds: time that the trainer waited for data.
    """

    pairs: list[tuple[float, float]]
    data_seconds: float


def _against_bare(processes: int, pairs: int, threads: int, compiled: bool) -> dict[str, Any]:
    config = TrainingConfig.model_validate(CONFIG | {"compile": compiled, "threads": threads})
    measured = []
    # A pool process ends with its task, so that each measurement has a new placement in memory.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for number in range(processes):
            _log(f"{pairs} pairs of steps, {'compiled' if compiled else 'eager'}, process {number + 1} of {processes}")
            measured.append(pool.submit(_measure, config, pairs, ours_first=number % 2 == 0).result())
    tokens = config.global_batch_size * config.model.shape.sequence_length * pairs * processes
    ratios = [ratio_of(each.pairs).value for each in measured]
    ours, bare = (sum(pair[place] for each in measured for pair in each.pairs) for place in (0, 1))
    return {
        "overhead": asdict(mean_ratio(ratios)),
        "overhead_by_process": ratios,
        "tokens_per_second": tokens / ours,
        "bare_tokens_per_second": tokens / bare,
        "data_share": sum(each.data_seconds for each in measured) / ours,
    }


def _measure(config: TrainingConfig, pairs: int, ours_first: bool) -> Measured:
    """Time pairs of steps. The loop that is built first can have better places in memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = write_dataset(folder / "bare", 1 << 20, VOCABULARY_SIZE) / "train-00000.bin"
        bare = None if ours_first else BareLoop(config, VOCABULARY_SIZE, tokens)
        with open_loop(config, VOCABULARY_SIZE, folder) as ours:
            bare = bare or BareLoop(config, VOCABULARY_SIZE, tokens)
            for _ in range(WARM_STEPS):
                time_steps(ours, 1)
                bare.time_step()
            measured = time_interleaved(lambda: time_steps(ours, 1)[0], bare.time_step, pairs)
            records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["record"] == "step"][WARM_STEPS:]
    return Measured(measured, sum(step["data_seconds"] for step in steps))


def _tokens_per_second_by_processes(threads: int) -> dict[str, float]:
    """Measure one and two processes alternately, with the same global batch size and cores."""
    measured: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_dataset(Path(folder) / "dataset", 1 << 20, VOCABULARY_SIZE)
        for number in range(PROCESS_ROUNDS):
            for processes in measured:
                directory = Path(folder) / f"run-{number}-{processes}"
                measured[processes] += _run(dataset, directory, processes, max(1, threads // processes))
    return {str(processes): statistics.median(rates) for processes, rates in measured.items()}


def _run(dataset: Path, directory: Path, processes: int, threads: int) -> list[float]:
    """Train under torchrun; return the tokens per second of each step after the warm-up."""
    directory.mkdir()
    config = CONFIG | {"steps": PROCESS_STEPS, "threads": threads}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"),
        *("--nproc-per-node", str(processes), "-m", "training", "train"),
        *("--config", directory / "config.json", "--dataset", dataset),
        *("--checkpoints", directory / "checkpoints", "--run-directory", directory),
    ]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"training with {processes} processes exited with {done.returncode}:\n{done.stderr}")
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [record["tokens_per_second"] for record in records if record["record"] == "step"][PROCESS_WARM_STEPS:]


def _bounds(results: dict[str, Any]) -> list[dict[str, Any]]:
    measured = [
        (
            "eager step relative to a bare one, upper 95% bound",
            results["eager"]["overhead"]["upper_95"],
            "at most",
            OVERHEAD_BOUND,
        ),
        (
            "compiled step relative to a bare one, upper 95% bound",
            results["compiled"]["overhead"]["upper_95"],
            "at most",
            OVERHEAD_BOUND,
        ),
        ("share of time spent waiting for data", results["eager"]["data_share"], "at most", DATA_SHARE_BOUND),
        ("loader, tokens per second", results["loader"]["tokens_per_second"], "at least", LOADER_BOUND),
    ]
    return [
        {
            "name": name,
            "value": value,
            "bound": f"{word} {bound:g}",
            "met": value <= bound if word == "at most" else value >= bound,
        }
        for name, value, word, bound in measured
    ]


def _print(results: dict[str, Any]) -> None:
    for name in ("eager", "compiled"):
        row = results[name]
        sys.stdout.write(
            f"{name:<10} {row['tokens_per_second']:9.0f} tokens/s, bare {row['bare_tokens_per_second']:9.0f}, ratio of "
            f"steps {row['overhead']['value']:.4f} ({row['overhead']['lower_95']:.4f} to "
            f"{row['overhead']['upper_95']:.4f})\n"
        )
    for processes, rate in results["processes"].items():
        sys.stdout.write(f"processes: {processes:<11} {rate:9.0f} tokens/s\n")
    for bound in results["bounds"]:
        verdict = "met    " if bound["met"] else "NOT MET"
        sys.stdout.write(f"  {verdict} {bound['name']:<53} {bound['value']:14.4f} ({bound['bound']})\n")


def _log(subject: str) -> None:
    sys.stderr.write(f"measuring {subject}\n")


if __name__ == "__main__":
    sys.exit(main())
