"""Training performance on GPUs: `python -m benchmarks.gpu` writes build/bench/gpu.json.

Measures tokens per second, MFU and memory for GPT-2 124M and for a Llama with 1.1 billion parameters (bf16, compiled,
sequence lengths 1024 and 2048, automatic micro-batch size). Also measures the effect of each setting, and how long a
checkpoint blocks training. Without a GPU, prints a message and exits with 0. The tokens are synthetic, so no download
is needed.
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

from training.bench.ablations import Bench, ablations
from training.bench.synthetic import write_dataset
from training.config import TrainingConfig
from training.errors import TrainingError

VOCABULARY_SIZE = 50304
"""GPT-2's 50257 rounded up to a multiple of 64, for tensor cores."""
NEVER = {"interval_steps": 1_000_000_000}
MFU_BOUND = 0.40
"""Minimum MFU for GPT-2 124M at sequence length 1024 on an H100. It is llm.c's MFU on eight H100s, from 140 ms per step
of 524,288 tokens (KellerJordan/modded-nanogpt, records/track_1_short/2024-10-13_llmc)."""
MODELS: dict[str, dict[str, Any]] = {
    "gpt2 1024": {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768, "sequence_length": 1024},
    "gpt2 2048": {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768, "sequence_length": 2048},
    "llama-1b 1024": {
        "architecture": "llama",
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "hidden_size": 2048,
        "sequence_length": 1024,
    },
    "llama-1b 2048": {"preset": "llama-1b"},
}
GLOBAL_TOKENS = 1 << 19


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; return 1 if the MFU is below the minimum on an H100."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--steps", type=int, default=24, help="steps per run; the first third is not counted")
    parser.add_argument("--minutes", type=float, default=60.0, help="do not start another run after this time")
    parser.add_argument("--only", help="run only models whose name contains this text")
    parser.add_argument("--output", type=Path, default=Path("build/bench/gpu.json"))
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.stdout.write("no GPU found: nothing to measure\n")
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
            # Write after each run, so that the results survive if the machine is lost.
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
        "global_batch_size": max(GLOBAL_TOKENS // config.model.shape.sequence_length, torch.cuda.device_count()),
        "micro_batch_size": "auto",
        "model": MODELS[model],
        "precision": "bf16",
        "compile": True,
        "optimizer": {"learning_rate": 6e-4 if model.startswith("gpt2") else 3e-4},
        "checkpoint": NEVER,
        "validation": {**NEVER, "batches": 1},
    }
    save(model, document)
    save(f"{model}, checkpoints", {**document, "checkpoint": {"interval_steps": 10}})
    found = results[model].get("micro_batch_size", "auto")
    # Change one setting at a time, with the micro-batch size of the first run.
    fixed = TrainingConfig.model_validate({**document, "micro_batch_size": found})
    for change, changed in ablations(fixed, torch.cuda.device_count(), on_gpu=True):
        if time.monotonic() < deadline:
            save(f"{model}, {change}", changed)


def _measure(bench: Bench, label: str, config: dict[str, Any]) -> dict[str, Any]:
    try:
        result = asdict(bench.measure(label, config))
    except TrainingError as error:
        sys.stdout.write(f"{label:<45} {error}\n")
        return {"error": str(error)}
    mfu = "unknown" if result["mfu"] is None else f"{result['mfu']:.1%}"
    stall = result["checkpoint_blocked_seconds"]
    sys.stdout.write(
        f"{label:<45} {result['tokens_per_second']:10.0f} tokens/s  MFU {mfu}  {result['gpu_peak_bytes'] / 2**30:6.1f} "
        f"GiB  micro-batch {result['micro_batch_size']}  {result['attention']}"
        f"{'' if stall is None else f'  checkpoint blocks {stall:.3f} s'}\n"
    )
    sys.stdout.flush()
    return result


def _verdict(gpu: str, results: dict[str, Any]) -> int:
    mfu = results.get("gpt2 1024", {}).get("mfu")
    if "H100" not in gpu or mfu is None:
        return 0
    met = mfu >= MFU_BOUND
    word = "met" if met else "NOT MET"
    sys.stdout.write(f"{word}: MFU of GPT-2 124M at sequence length 1024: {mfu:.1%} (minimum {MFU_BOUND:.0%})\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
