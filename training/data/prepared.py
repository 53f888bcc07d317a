"""``python -m training prepared``: what nodes prepared for `training.prepare`, and the removal of what is stale.

The layout in the bucket is in docs/architecture.md, section 6: `prepared/<digest>/` below the datasets, with
`prepared.json` as the commit. Nothing there expires by itself: only a person knows which runs still need it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from training.checkpoint.backend import Backend, open_backend
from training.errors import DatasetError

FOLDER = "prepared/"
COMMIT = "prepared.json"
SECONDS_A_DAY = 86400
SHOWN_DIGITS = 12


@dataclass(frozen=True)
class PreparedData:
    """What is there under one digest; `facts` of the commit: None where the work never came to an end."""

    digest: str
    keys: tuple[str, ...]
    facts: dict[str, Any] | None

    def line(self, now_unix_seconds: float) -> str:
        """The entry in the list."""
        if self.facts is None:
            return f"{self.digest[:SHOWN_DIGITS]}  unfinished, {len(self.keys)} objects"
        days = (now_unix_seconds - self.facts["unix_seconds"]) / SECONDS_A_DAY
        options = json.dumps(self.facts["options"], sort_keys=True)
        return (
            f"{self.digest[:SHOWN_DIGITS]}  {self.facts['bytes']} bytes, {days:.1f} days old: {self.facts['function']} "
            f"of {self.facts['source']} with {options}"
        )


def run_prepared(options: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    Raises:
        DatasetError: a digest to remove is not there, or stands for several; nothing was removed.
        StoreError: the store does not answer.
    """
    backend = open_backend(options.datasets)
    found = prepared_data(backend)
    now = time.time()
    if not options.remove and options.older_than_days is None:
        sys.stdout.write("".join(f"{each.line(now)}\n" for each in found) or f"{backend.url}: nothing is prepared\n")
        return 0
    chosen = {each.digest: each for each in _named(found, options.remove)}
    if options.older_than_days is not None:
        latest = now - options.older_than_days * SECONDS_A_DAY
        chosen |= {each.digest: each for each in found if each.facts and each.facts["unix_seconds"] < latest}
    for each in chosen.values():
        # The commit goes first: a node that comes now prepares anew, and never stages a half.
        keys = sorted(each.keys, key=lambda key: (PurePosixPath(key).name != COMMIT, key))
        backend.delete(keys[:1])
        backend.delete(keys[1:])
        sys.stdout.write(f"{each.line(now)}: removed\n")
    sys.stdout.write(f"{len(chosen)} of {len(found)} removed\n")
    return 0


def prepared_data(backend: Backend) -> list[PreparedData]:
    """All that is prepared, or was begun, in the store of datasets, by age: the oldest first, the unfinished last."""
    keys: dict[str, list[str]] = {}
    for key in backend.keys(FOLDER):
        keys.setdefault(key.split("/")[1], []).append(key)
    found = []
    for digest, names in keys.items():
        commit = f"{FOLDER}{digest}/{COMMIT}"
        facts = json.loads(backend.get(commit)) if commit in names else None
        found.append(PreparedData(digest, tuple(names), facts))
    return sorted(found, key=lambda each: (each.facts or {}).get("unix_seconds", float("inf")))


def _named(found: list[PreparedData], digests: list[str]) -> list[PreparedData]:
    problems, named = [], []
    for digest in digests:
        matching = [each for each in found if each.digest.startswith(digest)]
        if len(matching) != 1:
            what = "nothing is prepared under it" if not matching else f"{len(matching)} begin with it"
            problems.append(f"--remove: {digest}: {what}; give one of those that the command lists")
        named += matching
    if problems:
        raise DatasetError(problems)
    return named
