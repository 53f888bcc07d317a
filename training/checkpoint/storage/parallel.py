"""Parallel transfers that fail together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

TRANSFER_THREADS = 8
"""Number of concurrent transfers per process. An S3 connection transfers about 90 MB/s, so eight use about 5 Gb/s.
Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html (2025-06)."""

Report = Callable[[int], None]
"""Progress callback that receives the plain bytes processed since the last call. Several threads call it."""


def results_of(pool: ThreadPoolExecutor, pending: Sequence[Future[T]]) -> list[T]:
    """Wait for all futures. On the first failure or interrupt, cancel those that have not started, and re-raise it."""
    try:
        return [future.result() for future in pending]
    # Any exception, including KeyboardInterrupt. It is re-raised when no transfer is running.
    except BaseException:
        pool.shutdown(wait=True, cancel_futures=True)
        raise
