"""The history of the local cloud, one JSON object a line; other parts append to the same file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class RecordLog:
    """Appends to `<state directory>/records.jsonl`.

    Each record is one write on a descriptor opened with O_APPEND, so lines of several writers never mix.
    """

    def __init__(self, state_directory: Path) -> None:
        self._path = state_directory / "records.jsonl"
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, kind: str, **fields: object) -> None:
        """Write one record of `kind` with the present `unix_seconds`.

        Raises:
            OSError: the file cannot be written.
        """
        record = {"kind": kind, "unix_seconds": time.time(), **fields}
        line = (json.dumps(record, default=str) + "\n").encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
