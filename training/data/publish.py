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

import zstandard
from blake3 import blake3

from training.checkpoint.backend import Backend, open_backend
from training.data.dataset import RECORD_FILE
from training.data.progress import Progress
from training.errors import DatasetError, NotFoundError

UPLOADS = 8
COMPRESSION_LEVEL = 3
PACKED_ENDING = ".zst"
ENCODING_KEYS = ("encoding", "stored_bytes")
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
        found = dict(pool.map(_entry, files))
        if index is None:
            index = {"schema_version": 1, "name": options.name, "splits": {"files": {"shards": list(found.values())}}}
        else:
            _check_agreement(options.input, index, found)
        shards = _entries(index)

        def publish(path: Path) -> bool:
            """Write a file where what is there is not the same; return whether it was written."""
            known, entry = there.get(path.name), shards.get(path.name)
            same = known is not None and all(known[key] == value for key, value in found[path.name].items())
            # What is no shard, such as a tokenizer, is small, and read as it is.
            packed = options.compress and entry is not None
            if same and known is not None and (known.get("encoding") is not None) == packed:
                encoding = {key: known[key] for key in ENCODING_KEYS if key in known}
            else:
                encoding = _write(backend, path, packed)
                same = False
            if entry is not None:
                entry.update(encoding)
            progress.advance(path.stat().st_size)
            return not same

        new = sum(pool.map(publish, files))
    backend.put(RECORD_FILE, json.dumps(index, indent=2).encode() + b"\n")
    total = sum(entry["bytes"] for entry in found.values())
    stored = sum(entry.get("stored_bytes", 0) for entry in shards.values())
    sys.stdout.write(
        f"{backend.url}: {len(files)} files of {total} bytes{f' in {stored}' if stored else ''}, {new} of them new or "
        "changed\n"
    )
    return 0


def _entry(path: Path) -> tuple[str, dict[str, Any]]:
    digest = blake3().update_mmap(path).hexdigest()
    return path.name, {"file": path.name, "bytes": path.stat().st_size, "blake3": digest}


def _write(backend: Backend, path: Path, packed: bool) -> dict[str, Any]:
    """Write a file; return what the index is to say of its encoding."""
    content = path.read_bytes()
    if not packed:
        backend.put(path.name, content)
        return {}
    content = zstandard.compress(content, COMPRESSION_LEVEL)
    backend.put(f"{path.name}{PACKED_ENDING}", content)
    return {"encoding": "zstd", "stored_bytes": len(content)}


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
        if found.get(name) != {key: entry[key] for key in ("file", "bytes", "blake3")}
    ]
    if problems:
        raise DatasetError(problems)


def _entries(index: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """An index's entries of shards, by name.

    Raises:
        KeyError, TypeError, AttributeError: it is no index.
    """
    shards = [shard for split in index["splits"].values() for shard in split["shards"]]
    for shard in shards:
        _ = shard["bytes"], shard["blake3"]
    return {shard["file"]: shard for shard in shards}


def _published(backend: Backend) -> dict[str, Any]:
    """The index that is there; an empty one where there is none, or something else: all is written then."""
    empty: dict[str, Any] = {"splits": {}}
    try:
        index: dict[str, Any] = json.loads(backend.get(RECORD_FILE))
        _entries(index)
    except (NotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return empty
    return index
