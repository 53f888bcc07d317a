"""The run's metrics: one JSON object a line in `metrics.jsonl`, flushed each, written by rank 0 alone."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from training.errors import TrainingError
from training.metric_sinks import Sink


class MetricsFile:
    """Appends records.

    Args:
        path: of the file; None writes nothing (the other ranks).
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = None if path is None else path.open("a", encoding="utf-8")
        self._sinks: list[Sink] = []

    def also_to(self, sinks: Iterable[Sink]) -> None:
        """Give these every record from now on."""
        self._sinks += sinks

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
        for sink in self._sinks:
            sink.take(finite)

    def close(self) -> None:
        """Write what the sinks still hold; the file has every record already."""
        for sink in self._sinks:
            sink.close()
