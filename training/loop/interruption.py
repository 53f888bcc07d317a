"""External requests to this process: save and stop, or save and continue.

A request is a signal or a file in the run directory. This module only detects requests. The loop shares them with the
other ranks as control flags, so that all ranks stop at the same step.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import FrameType

from training.process.children import STOP_SIGNALS

TORCHRUN_GRACE_SECONDS = 30.0
"""Time for which torchrun waits between forwarding a signal to its workers and killing them.
Source: https://github.com/pytorch/pytorch/issues/119856 (2026-11)."""


class Interruption:
    """Save and stop requests. Signals are detected after construction, and files after the call to :meth:`watch`.

    A launcher may start this process with the stop signals blocked. Signals that arrived before construction are then
    also detected.

    A stop file with `train_on` requests that the process use the time until the deadline: save now, take more steps,
    and save the last step. This requires time for two saves and a measured save time; otherwise, the process stops now.

    Attributes:
        last_save_seconds: time needed to save and stop, with a margin; None until a save has been measured.
    """

    def __init__(self) -> None:
        self._signalled: int | None = None
        self._signalled_at = 0.0
        self._stop_file: str | None = None
        self._save_file: str | None = None
        self._stop_request: tuple[tuple[int, int], dict[str, object]] | None = None
        # Monotonic seconds, computed when the stop file is read, because the system clock may be changed later.
        self._deadline: float | None = None
        self._train_on_until: float | None = None
        self._saved_since_notice = False
        self.last_save_seconds: float | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A second signal has no effect, because the first signal has already started the stop.
        if self._signalled is None:
            self._signalled, self._signalled_at = number, time.monotonic()

    def watch(self, run_directory: Path) -> None:
        """Start watching for the files `stop` and `save` in this directory."""
        self._stop_file = str(run_directory / "stop")
        self._save_file = str(run_directory / "save")

    @property
    def wants_stop(self) -> bool:
        """True if this process should save and stop now. The check takes one `stat` call, a few microseconds."""
        if self._signalled is not None:
            return True
        remaining_seconds = self._seconds_to_train_on()
        return self._stop_document() is not None and (remaining_seconds is None or remaining_seconds <= 0)

    @property
    def wants_save(self) -> bool:
        """True if an extra checkpoint is requested, or if the run continues after a notice and has not saved since."""
        if self._save_file is not None and os.path.exists(self._save_file):  # noqa: PTH110
            return True
        remaining_seconds = self._seconds_to_train_on()
        return not self._saved_since_notice and remaining_seconds is not None and remaining_seconds > 0

    @property
    def leaves_soon(self) -> bool:
        """True if a save that begins now might not finish before the last save must begin."""
        remaining_seconds = self._seconds_to_train_on()
        return remaining_seconds is not None and remaining_seconds <= (self.last_save_seconds or 0)

    def save_taken(self) -> None:
        """Remove the request for an extra checkpoint when the save has begun."""
        if self._save_file is not None:
            Path(self._save_file).unlink(missing_ok=True)
        self._saved_since_notice = self._train_on_until is not None

    def _seconds_to_train_on(self) -> float | None:
        """Return the seconds until the last save must begin; None if extra training is not requested or not safe."""
        if self._stop_document() is None or self._train_on_until is None or self.last_save_seconds is None:
            return None
        return self._train_on_until - self.last_save_seconds - time.monotonic()

    def reason(self) -> str:
        """Return a message that explains why this process should stop."""
        if self._signalled is not None:
            return f"received {signal.Signals(self._signalled).name}"
        reason = (self._stop_document() or {}).get("reason")
        return str(reason) if reason else f"found the file {self._stop_file}"

    def seconds_to_deadline(self) -> float | None:
        """Return the seconds left for the last save; None without a deadline."""
        if self._stop_document() is None or self._deadline is None:
            return None
        return self._deadline - time.monotonic()

    def seconds_to_expected_kill(self) -> float | None:
        """Return the seconds until the deadline, or until torchrun kills this process; None if neither is known."""
        remaining_seconds = self.seconds_to_deadline()
        if remaining_seconds is None and self._signalled is not None and "TORCHELASTIC_RUN_ID" in os.environ:
            return self._signalled_at + TORCHRUN_GRACE_SECONDS - time.monotonic()
        return remaining_seconds

    def _stop_document(self) -> dict[str, object] | None:
        """Return the stop file's content; None if there is no file. The file is reread only after a change."""
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
        remaining_seconds = float(deadline) - time.time()
        self._deadline = time.monotonic() + remaining_seconds
        if document.get("train_on") is True and reserve_seconds is not None and 2 * reserve_seconds < remaining_seconds:
            self._train_on_until = self._deadline


def _read(stop_file: Path) -> dict[str, object]:
    try:
        document = json.loads(stop_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # The file is a request regardless of its content, even if it is empty. JSON content adds details.
        return {}
    return document if isinstance(document, dict) else {}
