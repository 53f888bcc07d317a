"""Comparison with nanoGPT's own training script: `python -m benchmarks.parity --nanogpt FOLDER`.

The script runs with the configuration that its README publishes for a CPU, 200 steps, the fused AdamW that it selects
on GPUs, and no warm-up, since its warm-up is defined differently. Its batches, losses, gradient norms, and initial and
final weights are recorded. The trainer then trains nanoGPT's model from the same weights on the same batches, as a
user-supplied model and dataset.
Source: https://github.com/karpathy/nanoGPT at 3adf61e (2025-11), README.md, "I only have a macbook".
"""

from __future__ import annotations

import argparse
import os
import pickle
import runpy
import shutil
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.parity.task import STEPS, Result
from training.data.order import sample_order

SOURCES = ("train.py", "model.py", "configurator.py", "config/train_shakespeare_char.py")
BATCH, BLOCK = 12, 64
PEAK_RATE, FINAL_RATE, BETAS, WEIGHT_DECAY, MAX_GRADIENT_NORM = 1e-3, 1e-4, (0.9, 0.99), 0.1, 1.0
SHAPE = {"n_layer": 4, "n_head": 4, "n_embd": 128}
SEED = 5
VOCABULARY_SIZE = 65
TOKENS = 100_000
FOLDER = "PARITY_FOLDER"
"""Environment variable that names the folder with the copy of nanoGPT and the recorded values."""


class FusedAdamW(torch.optim.AdamW):
    """AdamW with the kernel that nanoGPT selects on GPUs, and the trainer on all devices; others round differently."""

    def __init__(self, params: Iterable[dict[str, Any]], fused: bool = True, **options: Any) -> None:
        super().__init__(params, fused=fused, **options)


def copy_sources(source: Path, folder: Path) -> None:
    """Copy the nanoGPT files that training requires.

    Raises:
        SystemExit: A file of nanoGPT is missing.
    """
    for name in SOURCES:
        if not (source / name).is_file():
            raise SystemExit(f"--nanogpt: {source / name}: does not exist; specify a clone of karpathy/nanoGPT")
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / name, folder / name)


def prepare(source: Path, folder: Path) -> None:
    """Copy nanoGPT's sources, and write a dataset in its format: the source code of Python's standard library.

    With random characters, most gradients would be rounding errors once the model has learned their frequencies.

    Raises:
        SystemExit: A file of nanoGPT is missing.
    """
    copy = folder / "nanogpt"
    data = copy / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    copy_sources(source, copy)
    text = b"".join(path.read_bytes() for path in sorted(Path(argparse.__file__).parent.glob("a*.py")))[:TOKENS]
    by_frequency = np.argsort(-np.bincount(np.frombuffer(text, np.uint8), minlength=256), kind="stable")
    characters = np.minimum(np.argsort(by_frequency)[np.frombuffer(text, np.uint8)], VOCABULARY_SIZE - 1)
    for split in ("train", "val"):
        characters.astype(np.uint16).tofile(data / f"{split}.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": VOCABULARY_SIZE}))


def observe(folder: Path) -> None:
    """Run nanoGPT's script in its folder, and write the results."""
    os.chdir(folder / "nanogpt")
    sys.path.insert(0, str(Path.cwd()))
    kind: Any = import_module("model").GPT
    first: dict[str, Tensor] = {}
    rows: list[Tensor] = []
    losses: list[float] = []
    norms: list[float] = []
    forward, configure, clip = kind.forward, kind.configure_optimizers, nn.utils.clip_grad_norm_

    def observed_forward(self: nn.Module, inputs: Tensor, targets: Tensor) -> Any:
        logits, loss = forward(self, inputs, targets)
        if self.training:
            rows.append(torch.cat([inputs, targets[:, -1:]], dim=1))
            losses.append(loss.item())
        return logits, loss

    def observed_configure(self: nn.Module, *arguments: Any) -> Any:
        first.update({name: each.detach().clone() for name, each in self.named_parameters()})
        return configure(self, *arguments)

    def observed_clip(*arguments: Any) -> Tensor:
        norms.append(clip(*arguments).item())
        return torch.tensor(norms[-1])

    kind.forward, kind.configure_optimizers = observed_forward, observed_configure
    vars(torch.optim)["AdamW"] = FusedAdamW
    vars(torch.nn.utils)["clip_grad_norm_"] = observed_clip
    settings = {
        "device": "cpu",
        "dtype": "float32",
        "compile": False,
        "eval_iters": 1,
        "block_size": BLOCK,
        "batch_size": BATCH,
        **SHAPE,
        "dropout": 0.0,
        "max_iters": STEPS - 1,
        "lr_decay_iters": STEPS,
        "warmup_iters": 0,
    }
    sys.argv = ["train.py", "config/train_shakespeare_char.py", *(f"--{key}={each}" for key, each in settings.items())]
    left = runpy.run_path("train.py")
    Result(losses, norms).write(folder, "nanoGPT", left["model"])
    torch.save({"rows": torch.cat(rows), "weights": first}, folder / "task.pt")


def configuration() -> dict[str, Any]:
    """Return the trainer's configuration for the same training."""
    return {
        "seed": SEED,
        "steps": STEPS,
        "global_batch_size": BATCH,
        "micro_batch_size": BATCH,
        "model": {"function": "benchmarks.parity.nanogpt:model"},
        "data": {"function": "benchmarks.parity.nanogpt:dataset", "workers": 0},
        "optimizer": {
            "learning_rate": PEAK_RATE,
            "betas": BETAS,
            "weight_decay": WEIGHT_DECAY,
            "max_grad_norm": MAX_GRADIENT_NORM,
        },
        "schedule": {"kind": "cosine", "warmup_steps": 0, "min_lr_ratio": FINAL_RATE / PEAK_RATE},
        "validation": {"interval_steps": 10 * STEPS, "batches": 1},
        "precision": "fp32",
        "threads": 1,
    }


class _Loss(nn.Module):
    """nanoGPT's model, which returns only its loss."""

    def __init__(self, gpt: nn.Module) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = self.gpt(inputs, targets)[1]
        return loss


def model() -> nn.Module:
    """Return nanoGPT's model with the recorded initial weights."""
    folder = Path(os.environ[FOLDER])
    sys.path.insert(0, str(folder / "nanogpt"))
    module: Any = import_module("model")
    gpt = module.GPT(module.GPTConfig(block_size=BLOCK, vocab_size=VOCABULARY_SIZE, bias=False, dropout=0.0, **SHAPE))
    weights: Mapping[str, Tensor] = torch.load(folder / "task.pt", weights_only=True)["weights"]
    with torch.no_grad():
        for name, parameter in gpt.named_parameters():
            parameter.copy_(weights[name])
    return _Loss(gpt)


class _InOrder:
    """Samples, numbered so that the trainer reads them in nanoGPT's order."""

    def __init__(self, rows: Tensor) -> None:
        numbers = sample_order(0, len(rows), len(rows), SEED).astype(np.int64)
        self._rows = torch.empty_like(rows)
        self._rows[torch.from_numpy(numbers)] = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self._rows[number, :-1], self._rows[number, 1:]


def dataset(split: str) -> _InOrder:
    """Return the recorded batches, which the trainer also uses for validation."""
    del split
    return _InOrder(torch.load(Path(os.environ[FOLDER]) / "task.pt", weights_only=True)["rows"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    observe(Path(sys.argv[1]))
