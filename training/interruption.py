"""What this process has been asked from outside: to save and stop, or to save and go on.

Asked by SIGTERM or SIGINT, or by files in the run directory. Nothing acts on it here; the loop puts it to the vote, so
that all ranks stop at the same step.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path
from types import FrameType

logger = logging.getLogger(__name__)


class Interruption:
    """Requests to this process. Signals count from construction on; files from :meth:`watch` on."""

    def __init__(self) -> None:
        self._signalled: int | None = None
        self._stop_file: str | None = None
        self._save_file: str | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A second signal changes nothing: the save that the first one asked for is on its way.
        self._signalled = number

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

    def _stop_document(self) -> dict[str, object]:
        if self._stop_file is None:
            return {}
        try:
            document = json.loads(Path(self._stop_file).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            # Any content, or none, is a request; only JSON says more.
            return {}
        return document if isinstance(document, dict) else {}
