"""``python -m training publish``: files of the user's own become a dataset that nodes are staged from."""

from __future__ import annotations

import argparse
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from blake3 import blake3

from training.checkpoint.backend import Backend, open_backend
from training.data.dataset import RECORD_FILE
from training.data.progress import Progress
from training.errors import DatasetError, NotFoundError

UPLOADS = 8
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def run_publish(options: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    Raises:
        DatasetError: the folder holds nothing, or what a dataset cannot; nothing was written.
        StoreError: a file cannot be written; the index was not.
    """
    files = _files(options.input, options.name)
    backend = open_backend(f"{options.output.rstrip('/')}/{options.name}")
    there = _published(backend)
    with Progress() as progress, ThreadPoolExecutor(UPLOADS, thread_name_prefix="publish") as pool:
        progress.stage("publishing", sum(path.stat().st_size for path in files))

        def publish(path: Path) -> dict[str, Any]:
            size = path.stat().st_size
            entry = {"file": path.name, "bytes": size, "blake3": blake3().update_mmap(path).hexdigest()}
            if entry not in there:
                backend.put(path.name, path.read_bytes())
            progress.advance(size)
            return entry

        entries = list(pool.map(publish, files))
    index = {"schema_version": 1, "name": options.name, "splits": {"files": {"shards": entries}}}
    backend.put(RECORD_FILE, json.dumps(index, indent=2).encode() + b"\n")
    new = sum(entry not in there for entry in entries)
    total = sum(entry["bytes"] for entry in entries)
    sys.stdout.write(f"{backend.url}: {len(entries)} files of {total} bytes, {new} of them new or changed\n")
    return 0


def _files(folder: Path, name: str) -> list[Path]:
    problems = []
    if not NAME.fullmatch(name):
        problems.append(f"--name: {name!r} may have letters, digits, '.', '_' and '-' only; rename it")
    if not folder.is_dir():
        raise DatasetError([*problems, f"{folder}: is not a folder; give one that holds files"])
    paths = sorted(folder.iterdir())
    if not paths:
        problems.append(f"{folder}: holds no files; give a folder that does")
    for path in paths:
        if path.is_dir():
            problems.append(f"{path}: is a folder; pack what is in it into files, such as .tar, .npz or .parquet")
        elif not NAME.fullmatch(path.name) or path.name == RECORD_FILE:
            problems.append(
                f"{path}: names have letters, digits, '.', '_' and '-' only, and not {RECORD_FILE}; rename it"
            )
        elif not path.stat().st_size:
            problems.append(f"{path}: is empty; remove it")
    if problems:
        raise DatasetError(problems)
    return paths


def _published(backend: Backend) -> list[dict[str, Any]]:
    """Files of the index that is there."""
    try:
        index = json.loads(backend.get(RECORD_FILE))
        return list(index["splits"]["files"]["shards"])
    except (NotFoundError, ValueError, KeyError, TypeError):
        return []  # nothing, or something else: all of it is written
