"""What the trainer costs over a bare loop, and where its time goes: `python -m benchmarks.train`.

Writes build/bench/train.json: steps of the trainer against those of a hand-written loop of the same model, in turns, on
fresh data, with and without compilation; the share of a step that waits for data; two processes against one; and the
loader against torch's. Ends with 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import loader
from benchmarks.bare_loop import BareLoop
from benchmarks.pairs import in_turns, ratio_of
from benchmarks.two_processes import tokens_per_second_of
from training.bench.turns import NEVER_STEPS, open_loop, seconds_of_steps
from training.config import TrainingConfig

VOCABULARY_SIZE = 2048
WARM_STEPS = 10
OVERHEAD_BOUND = 1.03
DATA_SHARE_BOUND = 0.01
LOADER_BOUND = 100e6
CONFIG: dict[str, Any] = {
    "steps": NEVER_STEPS,
    "global_batch_sequences": 8,
    "micro_batch_sequences": 4,
    "model": {"layers": 4, "heads": 4, "embedding": 128, "context": 64},
    "optimizer": {"learning_rate": 3e-4},
    "schedule": {"kind": "constant"},
    "checkpoint": {"interval_steps": NEVER_STEPS},
    "validation": {"interval_steps": NEVER_STEPS},
}


def main(arguments: list[str] | None = None) -> int:
    """Measure everything; return 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train", description=__doc__)
    parser.add_argument("--pairs", type=int, default=600, help="pairs of steps, for each of eager and compiled")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="CPU threads")
    parser.add_argument("--output", type=Path, default=Path("build/bench/train.json"))
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {
        "config": CONFIG,
        "threads": options.threads,
        "torch": str(torch.__version__),
        "eager": _against_bare(options.pairs, options.threads, compiled=False),
        "compiled": _against_bare(options.pairs, options.threads, compiled=True),
    }
    _say("one process and two")
    results["two_processes"] = tokens_per_second_of(CONFIG, VOCABULARY_SIZE, options.threads)
    _say("the loader")
    results["loader"] = asdict(loader.measure())
    results["bounds"] = _bounds(results)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    _print(results)
    return 0 if all(bound["met"] for bound in results["bounds"]) else 1


def _against_bare(pairs: int, threads: int, compiled: bool) -> dict[str, Any]:
    config = TrainingConfig.model_validate(CONFIG | {"compile": compiled, "threads": threads})
    tokens_per_step = config.global_batch_sequences * config.model.shape.context
    with tempfile.TemporaryDirectory() as name, open_loop(config, VOCABULARY_SIZE, Path(name)) as ours:
        bare = BareLoop(config, VOCABULARY_SIZE, Path(name) / "dataset" / "train-00000.bin")
        for _ in range(WARM_STEPS):
            seconds_of_steps(ours, 1)
            bare.seconds_of_a_step()
        _say(f"{pairs} pairs of steps, {'compiled' if compiled else 'eager'}")
        measured = in_turns(lambda: seconds_of_steps(ours, 1)[0], bare.seconds_of_a_step, pairs)
        records = [json.loads(line) for line in (Path(name) / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["record"] == "step"][WARM_STEPS:]
    whole = sum(first for first, _ in measured)
    return {
        "overhead": asdict(ratio_of(measured)),
        "tokens_per_second": tokens_per_step * pairs / whole,
        "bare_tokens_per_second": tokens_per_step * pairs / sum(second for _, second in measured),
        "data_share": sum(step["data_seconds"] for step in steps) / whole,
    }


def _bounds(results: dict[str, Any]) -> list[dict[str, Any]]:
    measured = [
        ("eager step over a bare one, upper 95 %", results["eager"]["overhead"]["upper_95"], "at most", OVERHEAD_BOUND),
        (
            "compiled step over a bare one, upper 95 %",
            results["compiled"]["overhead"]["upper_95"],
            "at most",
            OVERHEAD_BOUND,
        ),
        ("share of time that waits for data", results["eager"]["data_share"], "at most", DATA_SHARE_BOUND),
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
    for processes, rate in results["two_processes"].items():
        sys.stdout.write(f"{processes:<22} {rate:9.0f} tokens/s\n")
    for bound in results["bounds"]:
        verdict = "met    " if bound["met"] else "NOT MET"
        sys.stdout.write(f"  {verdict} {bound['name']:<45} {bound['value']:14.4f} ({bound['bound']})\n")


def _say(what: str) -> None:
    sys.stderr.write(f"measuring {what}\n")


if __name__ == "__main__":
    sys.exit(main())
