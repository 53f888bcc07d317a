"""A custom training script with its own loop. Three lines save checkpoints, resume, and respond to stop requests.

To run it manually, put the repository on PYTHONPATH and run
``torchrun --nproc-per-node 2 examples/script/train.py --steps 200``.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from training.checkpoint import Checkpointer
from training.script import this_run


def batch_of(step: int, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points in a square, and a label that is 1 inside a ring. The same step and rank yield the same points."""
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    points = 2 * torch.rand(size, 2, generator=generator) - 1
    radius = points.norm(dim=1)
    return points, ((radius > 0.4) & (radius < 0.8)).float()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500, help="number of optimizer steps in the run")
    parser.add_argument("--save-every", type=int, default=50, help="number of steps between checkpoints")
    options = parser.parse_args()

    run = this_run()
    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more threads do not help such a small model
    model: nn.Module = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    checkpointer = Checkpointer(run.checkpoints, model, optimizer, generation=run.generation)
    step = checkpointer.resume().step
    while step < options.steps:
        points, inside = batch_of(step, rank, 64)
        loss = nn.functional.binary_cross_entropy_with_logits(model(points)[:, 0], inside)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        run.report("step", step=step, loss=loss.item())
        if step % options.save_every == 0:
            checkpointer.save(step)
        run.handle_requests(checkpointer, step)
    checkpointer.save(step, wait=True)
    checkpointer.close()


if __name__ == "__main__":
    main()
