"""Appends records to the JSON-lines files of a state directory.

Not here: what a record means (`architecture.md` lists the kinds) and who reads it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_lock = threading.Lock()


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Append one record, with the time in `unix_seconds`, as one line that readers see whole or not at all."""
    line = json.dumps({"unix_seconds": time.time(), **record}) + "\n"
    with _lock, path.open("a", encoding="utf-8") as file:
        file.write(line)
