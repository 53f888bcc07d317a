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

    A stop file with `train_on` asks to use the time until its deadline: for a save now, for steps, and for the save of
    the last one. That takes time for two saves, and a save that was measured; else it is a request to stop now.

    Attributes:
        last_save_seconds: what saving and stopping takes, with a reserve; None while that is not known.
    """

    def __init__(self) -> None:
        self._signalled: int | None = None
        self._signalled_at = 0.0
        self._stop_file: str | None = None
        self._save_file: str | None = None
        self._stop_request: tuple[tuple[int, int], dict[str, object]] | None = None
        # Monotonic seconds, from when the stop file was read: the machine's clock may be set after that.
        self._deadline: float | None = None
        self._train_on_until: float | None = None
        self._is_insured = False
        self.last_save_seconds: float | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A second signal changes nothing: the save that the first one asked for is on its way.
        if self._signalled is None:
            self._signalled, self._signalled_at = number, time.monotonic()

    def watch(self, run_directory: Path) -> None:
        """Look for `stop` and `save` in this directory."""
        self._stop_file = str(run_directory / "stop")
        self._save_file = str(run_directory / "save")

    @property
    def wants_stop(self) -> bool:
        """Whether this process is to save and stop now; a look at the file system, some microseconds."""
        if self._signalled is not None:
            return True
        left_seconds = self._seconds_to_train_on()
        return self._stop_document() is not None and (left_seconds is None or left_seconds <= 0)

    @property
    def wants_save(self) -> bool:
        """Whether this process was asked for an extra checkpoint, or trains on after a notice without one since."""
        if self._save_file is not None and os.path.exists(self._save_file):  # noqa: PTH110
            return True
        left_seconds = self._seconds_to_train_on()
        return not self._is_insured and left_seconds is not None and left_seconds > 0

    @property
    def leaves_soon(self) -> bool:
        """Whether a save that began now might not be through when the last one must begin."""
        left_seconds = self._seconds_to_train_on()
        return left_seconds is not None and left_seconds <= (self.last_save_seconds or 0)

    def save_taken(self) -> None:
        """The extra checkpoint has been taken: remove the request."""
        if self._save_file is not None:
            Path(self._save_file).unlink(missing_ok=True)
        self._is_insured = self._train_on_until is not None

    def _seconds_to_train_on(self) -> float | None:
        """How long until the last save must begin; None where nobody asked to train on, or it is not safe."""
        if self._stop_document() is None or self._train_on_until is None or self.last_save_seconds is None:
            return None
        return self._train_on_until - self.last_save_seconds - time.monotonic()

    def reason(self) -> str:
        """Why this process is to stop, in words."""
        if self._signalled is not None:
            return f"received {signal.Signals(self._signalled).name}"
        reason = (self._stop_document() or {}).get("reason")
        return str(reason) if reason else f"found the file {self._stop_file}"

    def seconds_to_deadline(self) -> float | None:
        """How long the save at the stop may take from now on; None if nobody said."""
        if self._stop_document() is None or self._deadline is None:
            return None
        return self._deadline - time.monotonic()

    def seconds_to_expected_kill(self) -> float | None:
        """How long this process will probably live: to the deadline, or torchrun's patience; None: nobody knows."""
        left_seconds = self.seconds_to_deadline()
        if left_seconds is None and self._signalled is not None and "TORCHELASTIC_RUN_ID" in os.environ:
            return self._signalled_at + TORCHRUN_GRACE_SECONDS - time.monotonic()
        return left_seconds

    def _stop_document(self) -> dict[str, object] | None:
        """The stop file, read again when it is another; None without one."""
        if self._stop_file is None:
            return None
        try:
            status = os.stat(self._stop_file)  # noqa: PTH116
        except FileNotFoundError:
            return None
        version = (status.st_mtime_ns, status.st_ino)
        if self._stop_request is None or self._stop_request[0] != version:
            document = _read(Path(self._stop_file))
            self._stop_request = (version, document)
            self._note_times(document)
        return self._stop_request[1]

    def _note_times(self, document: dict[str, object]) -> None:
        deadline, reserve_seconds = document.get("deadline_unix_seconds"), self.last_save_seconds
        self._deadline = self._train_on_until = None
        if not isinstance(deadline, (int, float)):
            return
        left_seconds = float(deadline) - time.time()
        self._deadline = time.monotonic() + left_seconds
        if document.get("train_on") is True and reserve_seconds is not None and 2 * reserve_seconds < left_seconds:
            self._train_on_until = self._deadline


def _read(stop_file: Path) -> dict[str, object]:
    try:
        document = json.loads(stop_file.read_text(encoding="utf-8"))
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
