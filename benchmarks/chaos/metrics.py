"""The trainer's own record of what it did, read while it may still be writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_records(run_directory: Path, kind: str) -> list[dict[str, Any]]:
    """Whole records of one kind from a run directory's metrics file; none if there is no file."""
    path = run_directory / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record for record in records if record["record"] == kind]
