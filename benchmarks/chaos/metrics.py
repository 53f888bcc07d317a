"""Reads the trainer's metrics file, even while the trainer is writing it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def longest_save_steps(run_directory: Path) -> int:
    """Return the maximum number of steps between copying a state and committing it; 0 without a commit."""
    step = longest = 0
    for record in _all_records(run_directory):
        if record["record"] == "step":
            step = record["step"]
        elif record["record"] == "checkpoint":
            longest = max(longest, step - record["step"])
    return longest


def read_records(run_directory: Path, kind: str) -> list[dict[str, Any]]:
    """Return the complete records of one kind from a run directory's metrics file, or an empty list without a file."""
    return [record for record in _all_records(run_directory) if record["record"] == kind]


def _all_records(run_directory: Path) -> list[dict[str, Any]]:
    path = run_directory / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
