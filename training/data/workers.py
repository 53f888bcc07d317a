"""The worker processes that fetch samples of a user-supplied dataset."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import signal
from typing import Any

from training.errors import ConfigurationError
from training.process.children import STOP_SIGNALS, end_with_parent, ignore_stop_signals

MAX_WORKERS = 8
SHARED_MEMORY = "/dev/shm"  # noqa: S108
"""File system for the worker processes' batches on Linux; 64 MB in a container by default.
Source: https://docs.docker.com/reference/cli/docker/container/run/ (2026-11), ``--shm-size``."""


def start_worker(worker: int) -> None:
    """Make a worker process ignore stop signals and exit with its trainer."""
    ignore_stop_signals(worker)
    end_with_parent()


def worker_count(configured: int | None, local_world_size: int) -> int:
    """Return the configured number of workers per trainer process, or one less than a process's share of the cores."""
    if configured is not None:
        return configured
    return max(0, min(MAX_WORKERS, len(os.sched_getaffinity(0)) // local_world_size - 1))


def start_forkserver() -> None:
    """Start the process that forks the workers, unless it is already running.

    The process starts with stop signals blocked. Otherwise, a signal to the process group would terminate it and the
    workers before the last save.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch.utils.data", "training.data.mapped"])
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def require_picklable(dataset: Any) -> None:
    """Check that the workers can receive the dataset.

    Raises:
        ConfigurationError: The dataset cannot be pickled.
    """
    try:
        pickle.dumps(dataset)
    # Pickling runs the dataset's code, which may raise any exception.
    except Exception as error:  # noqa: BLE001
        raise ConfigurationError(
            [
                f"data.function: cannot pickle the dataset for worker processes ({error}); open files and connections "
                "on first use, and use named functions instead of lambdas; or set data.workers: 0"
            ]
        ) from error


def require_shared_memory(batch_bytes: int, batches: int) -> None:
    """Check that the prefetched batches fit in shared memory.

    Raises:
        ConfigurationError: There is too little free space.
    """
    if not os.path.isdir(SHARED_MEMORY):  # noqa: PTH112
        return
    status = os.statvfs(SHARED_MEMORY)
    free, needed = status.f_bavail * status.f_frsize, batch_bytes * (batches + 1)
    if needed > free:
        raise ConfigurationError(
            [
                f"{SHARED_MEMORY}: {free >> 20} MiB free, but prefetched batches take {needed >> 20} MiB; "
                "enlarge it (docker run --shm-size), or lower data.workers, data.prefetch_batches or "
                "micro_batch_size"
            ]
        )
