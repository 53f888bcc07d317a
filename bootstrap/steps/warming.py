"""Has the blocks of a mounted dataset loaded before training asks for them, by a process that stays beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bootstrap.documents import Volume
from bootstrap.errors import StepError
from bootstrap.plan import Context


def warm(context: Context, dataset: Path) -> None:
    """Start to read a dataset's blocks, where the node document asks for it; return when the first are there.

    Raises:
        StepError: The disk cannot be read.
    """
    volume = next((each for each in context.node.volumes if Path(each.mount) in dataset.parents), None)
    if volume is None or not (volume.warm or volume.mount in context.unloaded):
        return
    line = context.system.start(
        _command(context, volume, dataset), timeout_seconds=context.node.supervise.boot_timeout_seconds
    )
    try:
        answer = json.loads(line)
    except ValueError:
        answer = {"problem": "ended, or took longer than boot_timeout_seconds, before the first of it was read"}
    if "problem" in answer:
        raise StepError(
            f"{dataset}: cannot be read ahead of training: {answer['problem']}",
            remedy="see what the kernel says of the volume's disk; give the machine back when the volume is impaired",
        )


def _command(context: Context, volume: Volume, dataset: Path) -> list[str]:
    command = [sys.executable, "-m", "bootstrap", "prewarm", "--root", str(context.layout.root), str(dataset)]
    if volume.warm_limit_mib_per_second is not None:
        command += ["--limit-mib-per-second", str(volume.warm_limit_mib_per_second)]
    return command
