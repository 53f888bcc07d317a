"""Appends records to the JSON-lines files of a state directory.

`docs/architecture.md` lists the kinds of records.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record as a single line; `unix_seconds` defaults to the current time.

    The line is a single write to a descriptor opened with O_APPEND. Lines from several writers therefore never
    interleave, and a reader never sees a partial line.

    Raises:
        OSError: The file cannot be written.
    """
    line = json.dumps({"unix_seconds": time.time(), **record}, default=str) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


class RecordLog:
    """The history of the cloud's services, stored in one file. Every record has `kind` and `unix_seconds`."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, kind: str, **fields: Any) -> None:
        """Append a record.

        Raises:
            OSError: The file cannot be written.
        """
        append_record(self._path, {"kind": kind, "unix_seconds": self._clock(), **fields})
