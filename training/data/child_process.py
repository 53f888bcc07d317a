"""What every process that this package starts for its own work does first."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading


def end_with_parent() -> None:
    """End this process as soon as the one that started it is gone, however that ended.

    A process that waits for work does not notice by itself; one that a fork server started has another parent anyway.
    """
    threading.Thread(target=_wait_for_parent, name="end-with-parent", daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "called in processes that multiprocessing has started"
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
