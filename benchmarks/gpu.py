"""What the trainer reaches on a GPU: `python -m benchmarks.gpu` writes build/bench/gpu.json.

GPT-2 124M and a Llama of 1.1 billion parameters, bf16, compiled, sequences of 1024 and 2048, the micro-batch found by
trying: tokens a second, MFU, memory; every lever on against off; and how long a checkpoint holds training up. Without a
GPU it says so and ends with 0. Nothing is downloaded: the tokens are made up.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from training.bench.levers import Bench, levers
from training.bench.synthetic import write_dataset
from training.config import TrainingConfig
from training.errors import TrainingError

VOCABULARY_SIZE = 50304
"""GPT-2's 50257 rounded up to a multiple of 64, which tensor cores like."""
NEVER = {"interval_steps": 1_000_000_000}
MFU_BOUND = 0.40
"""Of GPT-2 124M at 1024 on an H100: llm.c's on eight of them, from 140 ms a step of 524,288 tokens
(KellerJordan/modded-nanogpt, records/track_1_short/2024-10-13_llmc)."""
MODELS: dict[str, dict[str, Any]] = {
    "gpt2 1024": {"layers": 12, "heads": 12, "embedding": 768, "context": 1024},
    "gpt2 2048": {"layers": 12, "heads": 12, "embedding": 768, "context": 2048},
    "llama-1b 1024": {
        "architecture": "llama",
        "layers": 22,
        "heads": 32,
        "key_value_heads": 4,
        "embedding": 2048,
        "context": 1024,
    },
    "llama-1b 2048": {"preset": "llama-1b"},
}
GLOBAL_TOKENS = 1 << 19


def main(arguments: list[str] | None = None) -> int:
    """Measure; return 1 if the bound is missed on the hardware that it is for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--steps", type=int, default=24, help="steps of each run; the first third does not count")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no further run is begun")
    parser.add_argument("--only", help="models whose name has this")
    parser.add_argument("--output", type=Path, default=Path("build/bench/gpu.json"))
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.stdout.write("no GPU here: nothing to measure\n")
        return 0
    deadline = time.monotonic() + 60.0 * options.minutes
    name = torch.cuda.get_device_name(0)
    results: dict[str, Any] = {"gpu": name, "gpus": torch.cuda.device_count(), "torch": str(torch.__version__)}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tokens = options.steps * GLOBAL_TOKENS
        dataset = write_dataset(Path(folder) / "dataset", tokens + 1, VOCABULARY_SIZE)
        bench = Bench(dataset, Path(folder), torch.cuda.device_count(), options.steps)

        def save(label: str, config: dict[str, Any]) -> None:
            results[label] = _measure(bench, label, config)
            # After each, so that a machine that goes away takes along nothing that was measured.
            options.output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")

        for model in (each for each in MODELS if options.only is None or options.only in each):
            if time.monotonic() < deadline:
                _measure_model(model, save, results, deadline)
    return _verdict(name, results)


def _measure_model(
    model: str, save: Callable[[str, dict[str, Any]], None], results: dict[str, Any], deadline: float
) -> None:
    config = TrainingConfig.model_validate({"model": MODELS[model]})
    document = {
        "global_batch_sequences": max(GLOBAL_TOKENS // config.model.shape.context, torch.cuda.device_count()),
        "micro_batch_sequences": "auto",
        "model": MODELS[model],
        "precision": "bf16",
        "compile": True,
        "optimizer": {"learning_rate": 6e-4 if model.startswith("gpt2") else 3e-4},
        "checkpoint": NEVER,
        "validation": {**NEVER, "batches": 1},
    }
    save(model, document)
    save(f"{model}, checkpoints", {**document, "checkpoint": {"interval_steps": 10}})
    found = results[model].get("micro_batch_sequences", "auto")
    # One lever at a time: the micro-batch stays that of the first run, unless the lever is about memory.
    fixed = TrainingConfig.model_validate({**document, "micro_batch_sequences": found})
    for change, changed in levers(fixed, torch.cuda.device_count(), on_gpu=True):
        if time.monotonic() < deadline:
            save(f"{model}, {change}", changed)


def _measure(bench: Bench, label: str, config: dict[str, Any]) -> dict[str, Any]:
    try:
        result = asdict(bench.measure(label, config))
    except TrainingError as error:
        sys.stdout.write(f"{label:<45} {error}\n")
        return {"refused": str(error)}
    mfu = "unknown" if result["mfu"] is None else f"{result['mfu']:.1%}"
    stall = result["checkpoint_blocked_seconds"]
    sys.stdout.write(
        f"{label:<45} {result['tokens_per_second']:10.0f} tokens/s  MFU {mfu}  {result['gpu_peak_bytes'] / 2**30:6.1f} "
        f"GiB  micro-batch {result['micro_batch_sequences']}  {result['attention']}"
        f"{'' if stall is None else f'  checkpoint holds up {stall:.3f} s'}\n"
    )
    sys.stdout.flush()
    return result


def _verdict(gpu: str, results: dict[str, Any]) -> int:
    mfu = results.get("gpt2 1024", {}).get("mfu")
    if "H100" not in gpu or mfu is None:
        return 0
    met = mfu >= MFU_BOUND
    word = "met" if met else "NOT MET"
    sys.stdout.write(f"{word}: GPT-2 124M at 1024 with MFU {mfu:.1%} (at least {MFU_BOUND:.0%})\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
