"""Where every thread of a rank stands, on request: what is left to see of a rank that hangs."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
from pathlib import Path

logger = logging.getLogger(__name__)


def answer_with_stacks(run_directory: Path, rank: int) -> None:
    """Write all threads' stacks to `stacks/` of the run directory at each SIGUSR2, whatever the threads wait for.

    The file is there from the start, empty; its name says which process to ask.
    """
    folder = run_directory / "stacks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / f"rank-{rank:05d}-pid-{os.getpid()}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError as error:  # what matters more will say so too
        logger.warning("%s: no stacks will be written (%s)", folder, error)
        return
    faulthandler.register(signal.SIGUSR2, file)
