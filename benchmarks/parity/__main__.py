"""Compares the trainer with independent trainers, on the CPU in fp32: `python -m benchmarks.parity [--python PATH]`.

All of them train the same model from the same weights on the same batches, with the same optimizer, schedule and
clipping. Settings whose defaults differ between trainers are set explicitly. The trainer accumulates micro-batches, as
do HF Trainer and Lightning; the plain loop uses undivided global batches, as do nanoGPT and the trainer compared with
it. The trainer runs through its command line, and its final weights come from its last checkpoint.

Exit code: 0 if all relative differences are below the limit, 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.parity import nanogpt
from benchmarks.parity.peers import PEERS
from benchmarks.parity.task import (
    BETAS,
    FINAL_RATIO,
    GLOBAL_BATCH,
    MAX_GRADIENT_NORM,
    MICRO_BATCH,
    PEAK_RATE,
    SEED,
    SHAPE,
    STEPS,
    VOCABULARY_SIZE,
    WARMUP_STEPS,
    WEIGHT_DECAY,
    Result,
    read_result,
)
from training.bench.synthetic import write_dataset
from training.checkpoint.layout import bytes_of
from training.checkpoint.selection import select
from training.checkpoint.state.generators import seed_generators
from training.checkpoint.store import read_tensors
from training.data.dataset import open_dataset
from training.data.order import sample_order
from training.data.samples import Windows
from training.models.gpt import GPT
from training.observe.metrics import read_records

LIMIT = 1e-5
"""Limit for relative differences. Adding numbers in a different order causes differences of 1e-7 per step, which AdamW
amplifies."""
TOKENS = STEPS * GLOBAL_BATCH * SHAPE.sequence_length // 2
"""Tokens in the dataset: two epochs, so that the second epoch's order is also compared."""


def main(arguments: list[str] | None = None) -> int:
    """Train with all trainers, print the table, write the report, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="interpreter with the peers' packages")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="peers to compare with")
    parser.add_argument("--nanogpt", type=Path, metavar="FOLDER", help="clone of karpathy/nanoGPT to compare with")
    parser.add_argument("--output", type=Path, default=Path("build/bench/parity.json"), help="path of the report")
    options = parser.parse_args(arguments)
    differences = {}
    with tempfile.TemporaryDirectory(prefix="parity-") as name:
        folder = Path(name)
        if options.peers:
            own, own_weights = _train(folder)
            sys.stdout.write(f"loss {own.losses[0]:.4f} to {own.losses[-1]:.4f}\n")
        for peer in options.peers:
            sys.stderr.write(f"training with {peer}\n")
            _run([options.python, "-m", "benchmarks.parity.peers", peer, folder], folder, peer)
            differences[peer] = _differences(own, own_weights, *read_result(folder, peer))
    if options.nanogpt is not None:
        differences["nanoGPT"] = _compare_with_nanogpt(options.nanogpt)
    sys.stdout.write(f"largest relative differences over {STEPS} steps:\n")
    sys.stdout.write(f"{'':16}{'loss':>10}{'gradient norm':>16}{'final weights':>16}\n")
    for peer, values in differences.items():
        sys.stdout.write(f"{peer:16}{values['loss']:10.1e}{values['gradient norm']:16.1e}{values['weights']:16.1e}\n")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"limit": LIMIT, "differences": differences}, indent=2) + "\n")
    return int(any(not value < LIMIT for values in differences.values() for value in values.values()))


def _train(folder: Path) -> tuple[Result, Mapping[str, Tensor]]:
    """Write the task, and train with this trainer; return its result and its final weights."""
    dataset = write_dataset(folder / "dataset", TOKENS, VOCABULARY_SIZE, SEED)
    config = {
        "seed": SEED,
        "steps": STEPS,
        "global_batch_size": GLOBAL_BATCH,
        "micro_batch_size": MICRO_BATCH,
        "model": SHAPE._asdict(),
        "optimizer": {
            "learning_rate": PEAK_RATE,
            "betas": BETAS,
            "weight_decay": WEIGHT_DECAY,
            "max_grad_norm": MAX_GRADIENT_NORM,
        },
        "schedule": {"kind": "cosine", "warmup_steps": WARMUP_STEPS, "min_lr_ratio": FINAL_RATIO},
        "precision": "fp32",
        "threads": 1,
    }
    seed_generators(SEED)
    weights = {name: each.detach() for name, each in GPT(SHAPE, VOCABULARY_SIZE).named_parameters()}
    torch.save({"rows": _rows(dataset), "weights": weights}, folder / "task.pt")
    return _train_with(config, folder, {f"model/{name}": each for name, each in weights.items()})


def _compare_with_nanogpt(source: Path) -> dict[str, float]:
    """Train with nanoGPT's script and with this trainer; return the differences."""
    with tempfile.TemporaryDirectory(prefix="parity-") as name:
        folder = Path(name)
        nanogpt.prepare(source, folder)
        sys.stderr.write("training with nanoGPT\n")
        _run([sys.executable, "-m", "benchmarks.parity.nanogpt", folder], folder, "nanoGPT")
        other, other_weights = read_result(folder, "nanoGPT")
        (folder / "dataset").mkdir()
        forms = {f"model/gpt.{name}": each for name, each in other_weights.items()}
        own, weights = _train_with(nanogpt.configuration(), folder, forms)
        return _differences(
            own, {key.removeprefix("gpt."): each for key, each in weights.items()}, other, other_weights
        )


def _run(command: list[Any], folder: Path, name: str) -> None:
    """Run a peer; if it fails, print the end of its output.

    Raises:
        SystemExit: The peer failed.
    """
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        code = subprocess.run(command, env=environment, stdout=output, stderr=output, check=False).returncode
    if code:
        raise SystemExit(f"{name} failed (exit code {code}):\n{log.read_text(errors='replace')[-2000:]}")


def _train_with(
    config: dict[str, Any], folder: Path, forms: Mapping[str, Tensor]
) -> tuple[Result, Mapping[str, Tensor]]:
    """Train with this trainer; return its result, and the final tensors with the given names and forms.

    Raises:
        SystemExit: The trainer failed.
    """
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    paths = {option: folder / option for option in ("dataset", "checkpoints", "run")}
    command = [sys.executable, "-m", "training", "train", "--config", folder / "config.json"]
    command += ["--dataset", paths["dataset"], "--checkpoints", paths["checkpoints"], "--run-directory", paths["run"]]
    os.environ[nanogpt.FOLDER] = str(folder)
    sys.stderr.write("training with Trainstack\n")
    _run(command, folder, "Trainstack")
    steps = [record for record in read_records(paths["run"]) if record["record"] == "step"]
    result = Result([record["loss"] for record in steps], [record["gradient_norm"] for record in steps])
    selected = select(str(paths["checkpoints"]))
    final = {name: torch.empty_like(each) for name, each in forms.items()}
    memory = {name: bytes_of(each).numpy().data for name, each in final.items()}
    read_tensors(selected.backend, selected.manifest.parts[0], memory)
    return result, {name.removeprefix("model/"): each for name, each in final.items()}


def _rows(dataset: Path) -> Tensor:
    """Return all samples in the order of training."""
    windows = Windows(open_dataset(dataset).split("train"), SHAPE.sequence_length)
    numbers = sample_order(0, STEPS * GLOBAL_BATCH, windows.count, SEED).astype(np.int64)
    rows = np.empty((len(numbers), SHAPE.sequence_length + 1), dtype=np.int64)
    windows.fill(numbers, rows)
    return torch.from_numpy(rows)


def _differences(
    own: Result, own_weights: Mapping[str, Tensor], other: Result, weights: Mapping[str, Tensor]
) -> dict[str, float]:
    """Return the largest relative differences; for weights, relative to the norm of the parameter.

    Attention does not depend on the key biases, since softmax does not change if a constant is added to all
    scores. Their gradients are therefore rounding errors, which AdamW scales to full steps. They are not compared.
    """
    pairs = [(own.losses, other.losses), (own.gradient_norms, other.gradient_norms)]
    loss, norm = (
        max(abs(one - two) / abs(two) for one, two in zip(ours, theirs, strict=True)) for ours, theirs in pairs
    )
    assert own_weights.keys() == weights.keys(), "the trainers have the same parameters"
    by_parameter = []
    for name in weights:
        one, two = (_without_key_biases(name, each[name]) for each in (own_weights, weights))
        by_parameter.append(((one - two).norm() / two.norm()).item())
    return {"loss": loss, "gradient norm": norm, "weights": max(by_parameter)}


def _without_key_biases(name: str, weight: Tensor) -> Tensor:
    if not name.endswith("attention.qkv.bias"):
        return weight
    queries, _, values = weight.chunk(3)
    return torch.cat([queries, values])


if __name__ == "__main__":
    sys.exit(main())
