"""Speed of `sample` with and without the cache of keys and values.

``python -m benchmarks.sample`` prints the new tokens per second of a GPT and a Llama with random weights (medians of
interleaved measurements), and writes build/bench/sample.json. The texts fit the sequence length: a longer text has no
cache. Without a cache, the cost of a text grows with the square of its length, so ``--size medium`` takes minutes on a
CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from training.config import ModelConfig
from training.inference.sample import generate
from training.models.gpt import GPT
from training.models.llama import Llama
from training.models.named import build_named_model

OUTPUT = Path("build/bench/sample.json")
SIZES: dict[str, dict[str, Any]] = {
    "small": {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 256, "sequence_length": 256},
    "medium": {"num_hidden_layers": 6, "num_attention_heads": 6, "hidden_size": 384, "sequence_length": 512},
}
ARCHITECTURES = ("gpt", "llama")
VOCABULARY_SIZE = 4096
PROMPT = list(range(16))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurement; return the exit code: 1 if the cache changes a text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small", help="size of the models; default: %(default)s")
    parser.add_argument("--tokens", type=int, help="new tokens per text; default: half of the sequence length")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="texts of each model and way; default: %(default)s")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file for the results; default: %(default)s")
    options = parser.parse_args(arguments)
    longest = SIZES[options.size]["sequence_length"] - len(PROMPT)
    tokens = SIZES[options.size]["sequence_length"] // 2 if options.tokens is None else options.tokens
    if not 1 <= tokens <= longest or options.repeats < 1 or options.threads < 1:
        parser.error(f"--tokens must be from 1 to {longest}, and --repeats and --threads at least 1")
    torch.set_num_threads(options.threads)  # on a busy machine, several threads mostly wait for each other
    results = {}
    for name in ARCHITECTURES:
        results[name] = found = _measure(name, options.size, tokens, options.repeats)
        sys.stdout.write(
            f"{name}, {found['parameters'] / 1e6:.1f} M parameters: {found['cached_tokens_per_second']:,.0f} tokens/s "
            f"with the cache, {found['uncached_tokens_per_second']:,.0f} without: {found['speedup']:.1f} times as fast "
            f"({found['min_speedup']:.1f} to {found['max_speedup']:.1f}); "
            f"{'equal' if found['is_equal'] else 'DIFFERENT'} texts of {tokens} tokens\n"
        )
        sys.stdout.flush()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "size": options.size,
        "tokens": tokens,
        "repeats": options.repeats,
        "threads": options.threads,
        "models": results,
    }
    options.output.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if all(found["is_equal"] for found in results.values()) else 1


def _measure(name: str, size: str, tokens: int, repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({**SIZES[size], "architecture": name})
    model = build_named_model(config, VOCABULARY_SIZE).eval()
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
    speedups = [slow / fast for fast, slow in zip(seconds[True], seconds[False], strict=True)]
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "cached_tokens_per_second": cached,
        "uncached_tokens_per_second": uncached,
        "speedup": statistics.median(speedups),
        "min_speedup": min(speedups),
        "max_speedup": max(speedups),
        "is_equal": texts[True] == texts[False],
    }


def _timed(model: GPT | Llama, tokens: int, seed: int, uses_cache: bool) -> tuple[float, list[int]]:
    """Return the duration in seconds and the text. Choosing a token waits for the GPU."""
    start = time.perf_counter()
    text = generate(model, PROMPT, tokens, seed=seed, uses_cache=uses_cache)
    return time.perf_counter() - start, text


if __name__ == "__main__":
    sys.exit(main())
