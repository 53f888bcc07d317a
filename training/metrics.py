"""The run's metrics: one JSON object a line in `metrics.jsonl`, flushed each, written by rank 0 alone."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from training.errors import TrainingError


class MetricsFile:
    """Appends records.

    Args:
        path: of the file; None writes nothing (the other ranks).
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = None if path is None else path.open("a", encoding="utf-8")

    def write(self, record: str, **values: Any) -> None:
        """Append one record; a number that is not finite becomes null, which JSON has no other word for.

        Raises:
            TrainingError: the file cannot be written.
        """
        if self._file is None:
            return
        document = {"record": record, **values, "unix_seconds": time.time()}
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in document.items()
        }
        try:
            self._file.write(json.dumps(finite) + "\n")
            self._file.flush()
        except OSError as error:
            raise TrainingError(
                f"{self._file.name}: cannot be written: {error.strerror}; free space or correct its permissions"
            ) from error
