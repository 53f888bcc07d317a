"""Starts a background process that pre-warms a mounted dataset and continues during training."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bootstrap.context import Context
from bootstrap.documents import Volume
from bootstrap.errors import StepError


def start_prewarm(context: Context, dataset: Path) -> None:
    """Start the pre-warm if the node document requests it. Return after the first blocks have been read.

    Raises:
        StepError: The disk cannot be read.
    """
    volume = next((each for each in context.node.volumes if Path(each.mount) in dataset.parents), None)
    if volume is None or not (volume.warm or volume.mount in context.uninitialized_mounts):
        return
    line = context.system.start(
        _command(context, volume, dataset), timeout_seconds=context.node.supervise.boot_timeout_seconds
    )
    try:
        answer = json.loads(line)
    except ValueError:
        answer = {"problem": "exited or timed out (boot_timeout_seconds) before it had read the first blocks"}
    if "problem" in answer:
        raise StepError(
            f"{dataset}: pre-warm failed: {answer['problem']}",
            remedy="see the kernel log for the volume's disk; replace the instance if the volume is impaired",
        )


def _command(context: Context, volume: Volume, dataset: Path) -> list[str]:
    command = [sys.executable, "-m", "bootstrap", "prewarm", "--root", str(context.layout.root), str(dataset)]
    if volume.warm_limit_mib_per_second is not None:
        command += ["--limit-mib-per-second", str(volume.warm_limit_mib_per_second)]
    return command
