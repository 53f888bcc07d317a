"""Runs a script, records its batches and its final model, and kills it: `python -m benchmarks.own_work.observed`.

Arguments: the folder for the records, the class of the model, the number of the batch at which to kill the process (0:
never), the checkpoint store, the script and its arguments. The script itself is not changed. Each rank writes one line
per training batch, with a digest of the batch, to `batches-RANK`; rank 0 writes the final weights to `weights.pt`.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from training.checkpoint.state.model import model_tensors
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.store import checkpoint_entries

COMMIT_SECONDS = 60.0


def digest(values: Any) -> str:
    """Return a digest of all tensors in a batch, in order."""
    found = hashlib.blake2b(digest_size=8)
    waiting = [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            found.update(value.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
    return found.hexdigest()


def wait_for_commit(store: str) -> None:
    """Return when the store has a checkpoint.

    Raises:
        SystemExit: The store has no checkpoint after one minute.
    """
    deadline = time.monotonic() + COMMIT_SECONDS
    while time.monotonic() < deadline:
        if next(checkpoint_entries(open_backend(store)), None) is not None:
            return
        time.sleep(0.05)
    raise SystemExit(f"{store}: has no checkpoint after {COMMIT_SECONDS:.0f} s")


def main(folder: Path, kind: str, kill_at: int, store: str, script: str) -> None:
    """Run the script."""
    count = 0
    first: dict[str, nn.Module] = {}
    rank = os.environ.get("RANK", "0")

    def record(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], _: Any) -> None:
        nonlocal count
        if type(module).__name__ != kind:
            return
        first["model"] = module
        if not module.training:
            return
        count += 1
        with (folder / f"batches-{rank}").open("a", encoding="utf-8") as file:
            file.write(digest([arguments, named]) + "\n")
        if count == kill_at:
            wait_for_commit(store)
            os.kill(os.getpid(), signal.SIGKILL)

    register_module_forward_hook(record, with_kwargs=True)
    runpy.run_path(script, run_name="__main__")
    if rank == "0":
        torch.save({name: each.detach() for name, each in model_tensors(first["model"]).items()}, folder / "weights.pt")


if __name__ == "__main__":
    records, model, killed_at, checkpoints, path = sys.argv[1:6]
    sys.argv = [path, *sys.argv[6:]]
    sys.path.insert(0, str(Path(path).parent))
    main(Path(records), model, int(killed_at), checkpoints, path)
