"""Compares the embedded cloud with AWS's recorded and published responses, and prints the counts for each part.

The command fails if a part fails or if a known difference no longer occurs.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.truth.models import models
from tests.truth.recorded.run import recorded
from tests.truth.templates import templates

FOLDER = Path(__file__).parent
BUILD = Path("build/truth")
COUNTED = ("passed", "failed", "out of scope")


class _Counts:
    """A pytest plugin that counts the results. An expected failure is a known difference, which is out of scope."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test's result, or a failure in its fixtures."""
        if report.when == "call" or report.failed:
            self.found["out of scope" if report.skipped else report.outcome] += 1


def table() -> Counter[str]:
    """Send the requests in the table."""
    counts = _Counts()
    pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", str(FOLDER / "test_table.py")], plugins=[counts])
    return counts.found


PARTS: Mapping[str, Callable[[], Counter[str]]] = {
    "table": table,
    "models": lambda: models(BUILD / "demo"),
    "templates": lambda: templates(BUILD),
}


def main() -> int:
    """Run all parts; return 1 if one of them has failures or no results."""
    parts = dict(PARTS)
    folder = os.environ.get("LOCALSTACK")
    if folder:
        parts["recorded"] = lambda: recorded(Path(folder), BUILD)
    else:
        print("recorded: skipped; to run it: make truth LOCALSTACK=folder (a checkout of LocalStack)")
    results = {name: run() for name, run in parts.items()}
    for name, found in results.items():
        print(f"{name}: " + ", ".join(f"{found[outcome]} {outcome}" for outcome in COUNTED))
    return int(any(found["failed"] or not found["passed"] for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
