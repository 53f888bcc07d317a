"""The trainer's own record of what it did, read while it may still be writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def longest_save_steps(run_directory: Path) -> int:
    """Most steps that were done between the copy of a state and its commit; 0 if none was committed."""
    step = longest = 0
    for record in _all_records(run_directory):
        if record["record"] == "step":
            step = record["step"]
        elif record["record"] == "checkpoint":
            longest = max(longest, step - record["step"])
    return longest


def read_records(run_directory: Path, kind: str) -> list[dict[str, Any]]:
    """Whole records of one kind from a run directory's metrics file; none if there is no file."""
    return [record for record in _all_records(run_directory) if record["record"] == kind]


def _all_records(run_directory: Path) -> list[dict[str, Any]]:
    path = run_directory / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
