"""Stop signals, and the lifetime of processes started by a trainer."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
"""The four signals that torchrun forwards when it shuts down, and SIGUSR1, which batch schedulers send before a job's
time limit. torchrun does not forward SIGUSR1, which kills torchrun. Send it to the trainers instead, or write a stop
file.
Source: https://docs.pytorch.org/docs/stable/elastic/run.html (2026-11), `--signals-to-handle`."""


def ignore_stop_signals(worker: int = 0) -> None:
    """Ignore stop signals in a child process; usable as ``DataLoader(worker_init_fn=...)``.

    The trainer decides when its children stop. Otherwise, a signal to the process group (from Ctrl-C or a scheduler)
    would terminate the workers before the last batch.

    Args:
        worker: worker number passed by a DataLoader; not used.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_with_parent() -> None:
    """Exit this process when its parent exits for any reason.

    An idle worker does not detect the death of the trainer. The parent of a process forked by a fork server is the
    server.
    """
    threading.Thread(target=_wait_for_parent, name="end-with-parent", daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "only multiprocessing starts processes that call this"
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
