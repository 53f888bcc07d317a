"""Speed of `sample` with and without the cache of keys and values.

``python -m benchmarks.sample`` prints the new tokens per second of a GPT and a Llama with random weights, and writes
build/bench/sample.json. Both ways take turns. The texts fit the sequence length: a longer text has no cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from training.config import ModelConfig
from training.inference.sample import generate
from training.models.gpt import GPT
from training.models.llama import Llama
from training.models.named import build_named_model

OUTPUT = Path("build/bench/sample.json")
SIZES = {"num_hidden_layers": 6, "num_attention_heads": 6, "hidden_size": 384, "sequence_length": 512}
MODELS: dict[str, dict[str, Any]] = {"gpt": SIZES, "llama": {**SIZES, "architecture": "llama"}}
VOCABULARY_SIZE = 4096
PROMPT = list(range(16))


def main() -> int:
    """Run the measurement; return the exit code: 1 if the cache changes a text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256, help="new tokens per text; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="texts of each model and way; default: %(default)s")
    options = parser.parse_args()
    longest = SIZES["sequence_length"] - len(PROMPT)
    if not 1 <= options.tokens <= longest or options.repeats < 1:
        parser.error(f"--tokens must be from 1 to {longest}, and --repeats at least 1")
    results = {name: _measure(name, options.tokens, options.repeats) for name in MODELS}
    for name, found in results.items():
        sys.stdout.write(
            f"{name}: {found['cached_tokens_per_second']:,.0f} tokens/s with the cache, "
            f"{found['uncached_tokens_per_second']:,.0f} without: {found['speedup']:.1f} times as fast; "
            f"{'equal' if found['is_equal'] else 'DIFFERENT'} texts of {options.tokens} tokens\n"
        )
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps({"tokens": options.tokens, "models": results}, indent=2) + "\n")
    return 0 if all(found["is_equal"] for found in results.values()) else 1


def _measure(name: str, tokens: int, repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = build_named_model(ModelConfig.model_validate(MODELS[name]), VOCABULARY_SIZE).eval()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    generate(model, PROMPT, 2)  # the first calls load kernels
    seconds: dict[bool, list[float]] = {True: [], False: []}
    texts: dict[bool, list[list[int]]] = {True: [], False: []}
    for seed in range(repeats):
        for uses_cache in (True, False):
            elapsed, text = _timed(model, tokens, seed, uses_cache)
            seconds[uses_cache].append(elapsed)
            texts[uses_cache].append(text)
    cached, uncached = (tokens / statistics.median(seconds[each]) for each in (True, False))
    return {
        "cached_tokens_per_second": cached,
        "uncached_tokens_per_second": uncached,
        "speedup": cached / uncached,
        "is_equal": texts[True] == texts[False],
    }


def _timed(model: GPT | Llama, tokens: int, seed: int, uses_cache: bool) -> tuple[float, list[int]]:
    """Return the duration in seconds and the text. Choosing a token waits for the GPU."""
    start = time.perf_counter()
    text = generate(model, PROMPT, tokens, seed=seed, uses_cache=uses_cache)
    return time.perf_counter() - start, text


if __name__ == "__main__":
    sys.exit(main())
