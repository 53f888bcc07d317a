"""Stop signals, and the lifetime of processes started by a trainer."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
"""The four signals that torchrun forwards when it shuts down, and SIGUSR1, which batch schedulers send before a job's
time limit. SIGUSR1 kills torchrun, which does not forward it. Send it to the trainers instead, or write a stop file.
Source: https://docs.pytorch.org/docs/stable/elastic/run.html (2026-11), `--signals-to-handle`."""


def ignore_stop_signals(worker: int = 0) -> None:
    """Ignore stop signals in a child process; usable as ``DataLoader(worker_init_fn=...)``.

    The trainer decides when its children stop. Otherwise, a signal to the process group (from Ctrl-C or a scheduler)
    would end the workers before the last batch.

    Args:
        worker: worker number passed by a DataLoader; not used.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_with_parent() -> None:
    """Exit this process as soon as its parent ends, for any reason.

    An idle worker does not notice that its parent died. A process forked by a fork server has another parent anyway.
    """
    threading.Thread(target=_wait_for_parent, name="end-with-parent", daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "only multiprocessing starts processes that call this"
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
