"""``python -m training checkpoint ls | show | verify URL``: what a store holds, for people and scripts."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterator
from typing import Literal

from training.checkpoint.backend import Backend, open_backend
from training.checkpoint.store import Listed, list_checkpoints, read_part
from training.errors import CorruptCheckpointError

NOTHING_FOUND_EXIT_CODE = 1


def run_inspection(action: Literal["ls", "show", "verify"], url: str) -> int:
    """Print to standard output; return 0, or 1 if there is no whole checkpoint (ls, show) or a damaged one (verify)."""
    backend = open_backend(url)
    if action == "ls":
        return _list(backend)
    if action == "show":
        return _show(backend)
    return _verify(backend)


def _kept(backend: Backend) -> Iterator[Listed]:
    """Checkpoints that retention has not collected: those that still have their manifest."""
    return (listed for listed in list_checkpoints(backend) if listed.manifest is not None)


def _list(backend: Backend) -> int:
    whole = False
    for listed in list_checkpoints(backend):
        entry = listed.entry
        if listed.manifest is None:
            condition = "collected or lost"
        elif listed.missing:
            condition = f"damaged: {len(listed.missing)} chunks missing"
        else:
            condition, whole = "whole", True
        when = datetime.datetime.fromtimestamp(entry.unix_seconds, datetime.timezone.utc).isoformat(timespec="seconds")
        size_mib = (entry.bytes or 0) / 2**20
        sys.stdout.write(
            f"step {entry.step:>8}  generation {entry.generation:>4}  entry {entry.sequence:>6}  {when}  "
            f"{size_mib:>10.1f} MiB  {entry.reason or '':<8}  {condition}\n"
        )
    if not whole:
        sys.stderr.write(f"{backend.url}: has no whole checkpoint\n")
    return 0 if whole else NOTHING_FOUND_EXIT_CODE


def _show(backend: Backend) -> int:
    for listed in _kept(backend):
        if not listed.is_whole:
            continue
        assert listed.manifest is not None, "a whole checkpoint has one"
        described = listed.manifest.model_dump(mode="json", exclude={"parts"})
        described["log_entry"] = listed.entry.model_dump(mode="json", exclude_none=True)
        described["parts"] = [
            {"tensors": len(part.tensors), "chunks": len(part.chunks), "bytes": part.plain_bytes}
            for part in listed.manifest.parts
        ]
        sys.stdout.write(json.dumps(described, indent=2) + "\n")
        return 0
    sys.stderr.write(f"{backend.url}: has no whole checkpoint\n")
    return NOTHING_FOUND_EXIT_CODE


def _verify(backend: Backend) -> int:
    damaged = checked = 0
    for listed in _kept(backend):
        assert listed.manifest is not None, "kept ones have theirs"
        checked += 1
        try:
            for part in listed.manifest.parts:
                read_part(backend, part)
        except CorruptCheckpointError as error:
            damaged += 1
            sys.stdout.write(f"step {listed.entry.step}: {error}\n")
        else:
            sys.stdout.write(f"step {listed.entry.step}: every chunk is there and has its hash\n")
    if not checked:
        sys.stderr.write(f"{backend.url}: has no checkpoint\n")
    return 0 if checked and not damaged else NOTHING_FOUND_EXIT_CODE
