"""Tokens a second of one process with all threads, and of two with half of them each, as torchrun starts them."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from training.bench.synthetic import write_dataset

STEPS = 80
WARM_STEPS = 20
ROUNDS = 2


def tokens_per_second_of(config: dict[str, Any], vocabulary_size: int, threads: int) -> dict[str, float]:
    """Measure one and two processes in turns; the same global batch, and the same cores."""
    measured: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_dataset(Path(folder) / "dataset", 1 << 20, vocabulary_size)
        for number in range(ROUNDS):
            for processes in measured:
                directory = Path(folder) / f"run-{number}-{processes}"
                measured[processes] += _train(config, dataset, directory, processes, max(1, threads // processes))
    return {f"{processes} processes": statistics.median(rates) for processes, rates in measured.items()}


def _train(config: dict[str, Any], dataset: Path, directory: Path, processes: int, threads: int) -> list[float]:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config | {"steps": STEPS, "threads": threads}), encoding="utf-8")
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"),
        *("--nproc-per-node", str(processes), "-m", "training", "train"),
        *("--config", directory / "config.json", "--dataset", dataset),
        *("--checkpoints", directory / "checkpoints", "--run-directory", directory),
    ]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"training on {processes} processes ended with {done.returncode}:\n{done.stderr}")
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [record["tokens_per_second"] for record in records if record["record"] == "step"][WARM_STEPS:]
