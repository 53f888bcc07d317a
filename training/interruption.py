"""What this process has been asked from outside: to save and stop, or to save and go on.

Asked by a signal, or by files in the run directory. Nothing acts on it here; the loop puts it to the vote, so that all
ranks stop at the same step.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from pathlib import Path
from types import FrameType

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
"""The four that torchrun passes on when it is shut down, and the one that batch schedulers are told to send before a
time limit. torchrun itself dies of SIGUSR1 and passes it on to nobody: send it to the trainers, or write a stop file.
Source: https://docs.pytorch.org/docs/stable/elastic/run.html (2026-11), `--signals-to-handle`."""
TORCHRUN_GRACE_SECONDS = 30.0
"""torchrun kills its workers so long after it has passed a signal on.
Source: https://github.com/pytorch/pytorch/issues/119856 (2026-11)."""


class Interruption:
    """Requests to this process. Signals count from construction on; files from :meth:`watch` on.

    A launcher may start this process with these signals blocked: what comes before anybody can hear it counts then too.
    """

    def __init__(self) -> None:
        self._signalled: int | None = None
        self._signalled_unix_seconds = 0.0
        self._stop_file: str | None = None
        self._save_file: str | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A second signal changes nothing: the save that the first one asked for is on its way.
        if self._signalled is None:
            self._signalled, self._signalled_unix_seconds = number, time.time()

    def watch(self, run_directory: Path) -> None:
        """Look for `stop` and `save` in this directory."""
        self._stop_file = str(run_directory / "stop")
        self._save_file = str(run_directory / "save")

    @property
    def wants_stop(self) -> bool:
        """Whether this process was asked to save and stop; a look at the file system, some microseconds."""
        return self._signalled is not None or (self._stop_file is not None and os.path.exists(self._stop_file))  # noqa: PTH110

    @property
    def wants_save(self) -> bool:
        """Whether this process was asked for an extra checkpoint."""
        return self._save_file is not None and os.path.exists(self._save_file)  # noqa: PTH110

    def save_taken(self) -> None:
        """The extra checkpoint has been taken: remove the request."""
        if self._save_file is not None:
            Path(self._save_file).unlink(missing_ok=True)

    def reason(self) -> str:
        """Why this process is to stop, in words."""
        if self._signalled is not None:
            return f"received {signal.Signals(self._signalled).name}"
        reason = self._stop_document().get("reason")
        return str(reason) if reason else f"found the file {self._stop_file}"

    def deadline_unix_seconds(self) -> float | None:
        """When the save at the stop has to be done; None if nobody said."""
        deadline = self._stop_document().get("deadline_unix_seconds")
        return float(deadline) if isinstance(deadline, (int, float)) else None

    def expected_kill_unix_seconds(self) -> float | None:
        """When this process will probably be killed: deadline, or end of torchrun's patience; None: not soon."""
        deadline = self.deadline_unix_seconds()
        if deadline is None and self._signalled is not None and "TORCHELASTIC_RUN_ID" in os.environ:
            return self._signalled_unix_seconds + TORCHRUN_GRACE_SECONDS
        return deadline

    def _stop_document(self) -> dict[str, object]:
        if self._stop_file is None:
            return {}
        try:
            document = json.loads(Path(self._stop_file).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            # Any content, or none, is a request; only JSON says more.
            return {}
        return document if isinstance(document, dict) else {}


def ignore_stop_signals(worker: int = 0) -> None:
    """Leave stopping to the trainer: for processes that it starts, such as ``DataLoader(worker_init_fn=...)``.

    A signal to the whole process group (Ctrl-C, a scheduler) would otherwise end the workers before the last batch.

    Args:
        worker: number that a DataLoader passes in; not used.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
