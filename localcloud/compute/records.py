"""The history of instances and fleets, one JSON object a line, for reports.

Not here: what the instances are now (`inventory`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class RecordLog:
    """Appends to `records.jsonl`; every record has `kind` and `unix_seconds`.

    Kinds: instance_launched, instance_ended, interruption, capacity_refused, group_activity, fleet_event.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, kind: str, **fields: Any) -> None:
        """Write one record; a line is whole or absent, whatever ends the process."""
        line = json.dumps({"kind": kind, "unix_seconds": self._clock(), **fields}, sort_keys=False) + "\n"
        with self._lock, self._path.open("ab", buffering=0) as log:
            log.write(line.encode())
