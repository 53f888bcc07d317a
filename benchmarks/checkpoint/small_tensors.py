"""Measures how long a save of 100,000 small tensors blocks the training loop.

Run `python -m benchmarks.checkpoint.small_tensors`.

The state has 25,000 parameters with 16 elements each, and AdamW's three tensors for each of them. A first save also
computes the layout and allocates the buffer. Exit code: 1 if a save blocked the loop for longer than the limit.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass

import torch
from torch import nn

from training.checkpoint import Checkpointer

PARAMETERS = 25_000
TENSORS = 4 * PARAMETERS
ELEMENTS = 16
LATER_SAVES = 3
LIMIT_SECONDS = 2.0


@dataclass(frozen=True)
class Blocked:
    """Seconds for which saves blocked the loop: wall-clock time, and the process's CPU time.

    Attributes:
        first: the first save.
        later: the median of the later saves.
    """

    first: float
    later: float
    first_cpu: float
    later_cpu: float


def blocked_seconds() -> Blocked:
    """Return the time for which the first save and later saves block the loop."""
    model = nn.ParameterList([nn.Parameter(torch.zeros(ELEMENTS)) for _ in range(PARAMETERS)])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    wall, cpu = [], []
    with tempfile.TemporaryDirectory(prefix="small-tensors-") as folder:
        checkpointer = Checkpointer(folder, model, optimizer)
        checkpointer.resume()
        for step in range(1, LATER_SAVES + 2):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, step)
            optimizer.step()
            began, began_cpu = time.perf_counter(), time.process_time()
            checkpointer.save(step)
            wall.append(time.perf_counter() - began)
            cpu.append(time.process_time() - began_cpu)
            while checkpointer.is_saving:
                time.sleep(0.05)
        checkpointer.close()
    return Blocked(wall[0], statistics.median(wall[1:]), cpu[0], statistics.median(cpu[1:]))


def main() -> int:
    """Print the figures, and return the exit code."""
    blocked = blocked_seconds()
    sys.stdout.write(
        f"{TENSORS:,} tensors: the first save blocked the loop for {blocked.first:.2f} s ({blocked.first_cpu:.2f} s of "
        f"CPU time), later saves {blocked.later:.2f} s ({blocked.later_cpu:.2f} s); limit {LIMIT_SECONDS:.0f} s\n"
    )
    return int(max(blocked.first, blocked.later) > LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
