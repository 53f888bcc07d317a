"""``python -m training publish``: files of the user's own become a dataset that nodes are staged from.

A folder that has an index already, as `tokenize` writes it, is published as it is, once its files are found to agree.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
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
    problems = []
    if not NAME.fullmatch(options.name):
        problems.append(f"--name: {options.name!r} may have letters, digits, '.', '_' and '-' only; rename it")
    files = files_to_publish(options.input, problems)
    index = _read_index(options.input)
    backend = open_backend(f"{options.output.rstrip('/')}/{options.name}")
    there = _entries(_published(backend))
    with Progress() as progress, ThreadPoolExecutor(UPLOADS, thread_name_prefix="publish") as pool:
        progress.stage("publishing", sum(path.stat().st_size for path in files))

        def hash_of(path: Path) -> tuple[str, dict[str, Any]]:
            digest = blake3().update_mmap(path).hexdigest()
            return path.name, {"file": path.name, "bytes": path.stat().st_size, "blake3": digest}

        def publish(path: Path) -> None:
            backend.put(path.name, path.read_bytes())
            progress.advance(path.stat().st_size)

        found = dict(pool.map(hash_of, files))
        if index is None:
            index = {"schema_version": 1, "name": options.name, "splits": {"files": {"shards": list(found.values())}}}
        else:
            _check_agreement(options.input, index, found)
        new = [path for path in files if there.get(path.name) != found[path.name]]
        list(pool.map(publish, new))
    backend.put(RECORD_FILE, json.dumps(index, indent=2).encode() + b"\n")
    total = sum(entry["bytes"] for entry in found.values())
    sys.stdout.write(f"{backend.url}: {len(files)} files of {total} bytes, {len(new)} of them new or changed\n")
    return 0


def files_to_publish(folder: Path, known_problems: Sequence[str] = ()) -> list[Path]:
    """The files of a dataset's folder, without its index.

    Raises:
        DatasetError: there are none, or some that a dataset cannot hold; or there are known problems.
    """
    problems = [*known_problems]
    if not folder.is_dir():
        raise DatasetError([*problems, f"{folder}: is not a folder; give one that holds files"])
    paths = sorted(path for path in folder.iterdir() if path.name != RECORD_FILE)
    if not paths:
        problems.append(f"{folder}: holds no files; give a folder that does")
    for path in paths:
        if path.is_dir():
            problems.append(f"{path}: is a folder; pack what is in it into files, such as .tar, .npz or .parquet")
        elif not NAME.fullmatch(path.name):
            problems.append(f"{path}: names have letters, digits, '.', '_' and '-' only; rename it")
        elif not path.stat().st_size:
            problems.append(f"{path}: is empty; remove it")
    try:
        _read_index(folder)
    except DatasetError as error:
        problems += error.problems
    if problems:
        raise DatasetError(problems)
    return paths


def _read_index(folder: Path) -> dict[str, Any] | None:
    """The index of a folder that has one."""
    path = folder / RECORD_FILE
    if not path.exists():
        return None
    try:
        index: dict[str, Any] = json.loads(path.read_bytes())
        _entries(index)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(
            [f"{path}: is not the index of a dataset ({type(error).__name__}: {error}); remove it, or make it anew"]
        ) from error
    return index


def _check_agreement(folder: Path, index: dict[str, Any], found: dict[str, dict[str, Any]]) -> None:
    """A folder's files are those that its index names."""
    problems = [
        f"{folder / name}: is not the file that {RECORD_FILE} names: {'missing' if name not in found else 'changed'}; "
        "make the dataset anew"
        for name, entry in _entries(index).items()
        if found.get(name) != entry
    ]
    if problems:
        raise DatasetError(problems)


def _entries(index: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What an index says of each shard: its name, bytes and hash."""
    shards = [shard for split in index["splits"].values() for shard in split["shards"]]
    return {shard["file"]: {key: shard[key] for key in ("file", "bytes", "blake3")} for shard in shards}


def _published(backend: Backend) -> dict[str, Any]:
    """The index that is there; an empty one where there is none, or something else: all is written then."""
    empty: dict[str, Any] = {"splits": {}}
    try:
        index: dict[str, Any] = json.loads(backend.get(RECORD_FILE))
        _entries(index)
    except (NotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return empty
    return index
