"""Dumps the stacks of a hanging rank on request."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
from pathlib import Path

logger = logging.getLogger(__name__)


def dump_stacks_on_signal(run_directory: Path, rank: int) -> None:
    """On each SIGUSR2, write the stacks of all threads to a file in the run directory's `stacks/` folder.

    This works even if all threads are blocked. The file is initially empty; its name contains the process id to signal.
    """
    folder = run_directory / "stacks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / f"rank-{rank:05d}-pid-{os.getpid()}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError as error:  # if the disk is full or read-only, the run fails elsewhere
        logger.warning("%s: cannot write stack dumps (%s)", folder, error)
        return
    faulthandler.register(signal.SIGUSR2, file)
