"""``python -m training publish``: publishes a folder as a dataset that nodes can stage.

A folder that already has a matching index, such as one written by `tokenize`, is published with that index.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import zstandard
from blake3 import blake3

from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.urls import open_backend
from training.data.dataset import RECORD_FILE
from training.data.progress import Progress
from training.errors import AlreadyExistsError, DatasetError, NotFoundError

UPLOADS = 8
COMPRESSION_LEVEL = 3
COMPRESSED_SUFFIX = ".zst"
ENCODING_KEYS = ("encoding", "stored_bytes")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def run_publish(options: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    Raises:
        DatasetError: The folder is empty or has invalid contents; nothing was written.
        AlreadyExistsError: With --create, a file with the same name in the destination has different contents.
        StoreError: A file could not be written; the index was not written.
    """
    problems = []
    if not NAME.fullmatch(options.name):
        problems.append(f"--name: {options.name!r}: only letters, digits, '.', '_' and '-' are allowed; rename it")
    files = files_to_publish(options.input, problems)
    index = _read_index(options.input)
    backend = open_backend(f"{options.output.rstrip('/')}/{options.name}")
    existing = _entries(_published(backend))
    write = _creates(backend) if options.create else backend.put
    with Progress() as progress, ThreadPoolExecutor(UPLOADS, thread_name_prefix="publish") as pool:
        progress.stage("publishing", sum(path.stat().st_size for path in files))
        found = dict(pool.map(_entry, files))
        if index is None:
            index = {"schema_version": 1, "name": options.name, "splits": {"files": {"shards": list(found.values())}}}
        else:
            _check_agreement(options.input, index, found)
        shards = _entries(index)

        def publish(path: Path) -> bool:
            """Write a file unless the destination has an identical file; return True if it was written."""
            known, entry = existing.get(path.name), shards.get(path.name)
            same = known is not None and all(known[key] == value for key, value in found[path.name].items())
            # Other files, such as the tokenizer, are small, and readers expect them uncompressed.
            compressed = options.compress and entry is not None
            if same and known is not None and (known.get("encoding") is not None) == compressed:
                encoding = {key: known[key] for key in ENCODING_KEYS if key in known}
            else:
                encoding = _write(write, path, compressed)
                same = False
            if entry is not None:
                entry.update(encoding)
            progress.advance(path.stat().st_size)
            return not same

        new = sum(pool.map(publish, files))
    write(RECORD_FILE, json.dumps(index, indent=2).encode() + b"\n")
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


def _creates(backend: Backend) -> Callable[[str, bytes], None]:
    """Return a function that writes an object only if it does not exist.

    After a lost response, the retry finds the object that this process has written.
    """

    def create(key: str, content: bytes) -> None:
        try:
            backend.create(key, content)
        except AlreadyExistsError:
            if backend.get(key) != content:
                raise

    return create


def _write(write: Callable[[str, bytes], None], path: Path, compressed: bool) -> dict[str, Any]:
    """Write a file; return the keys of its index entry that describe its encoding."""
    content = path.read_bytes()
    if not compressed:
        write(path.name, content)
        return {}
    content = zstandard.compress(content, COMPRESSION_LEVEL)
    write(f"{path.name}{COMPRESSED_SUFFIX}", content)
    return {"encoding": "zstd", "stored_bytes": len(content)}


def files_to_publish(folder: Path, known_problems: Sequence[str] = ()) -> list[Path]:
    """Return the files in a dataset folder, without its index.

    Args:
        folder: folder to list.
        known_problems: problems to raise together with the folder's problems.

    Raises:
        DatasetError: The folder is empty or has invalid contents, or there are known problems.
    """
    problems = [*known_problems]
    if not folder.is_dir():
        raise DatasetError([*problems, f"{folder}: not a folder; specify a folder with files"])
    paths = sorted(path for path in folder.iterdir() if path.name != RECORD_FILE)
    if not paths:
        problems.append(f"{folder}: empty folder; specify a folder with files")
    for path in paths:
        if path.is_dir():
            problems.append(f"{path}: subfolders are not allowed; pack it into a file, such as .tar, .npz or .parquet")
        elif not NAME.fullmatch(path.name):
            problems.append(f"{path}: only letters, digits, '.', '_' and '-' are allowed in names; rename it")
        elif not path.stat().st_size:
            problems.append(f"{path}: empty file; remove it")
    try:
        _read_index(folder)
    except DatasetError as error:
        problems += error.problems
    if problems:
        raise DatasetError(problems)
    return paths


def _read_index(folder: Path) -> dict[str, Any] | None:
    """Return a folder's index; None if there is none."""
    path = folder / RECORD_FILE
    if not path.exists():
        return None
    try:
        index: dict[str, Any] = json.loads(path.read_bytes())
        _entries(index)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DatasetError(
            [f"{path}: not a dataset index ({type(error).__name__}: {error}); remove it, or recreate it"]
        ) from error
    return index


def _check_agreement(folder: Path, index: dict[str, Any], found: dict[str, dict[str, Any]]) -> None:
    """Check that a folder's files match its index."""
    problems = [
        f"{folder / name}: {'missing' if name not in found else 'differs from its hash in'} {RECORD_FILE}; "
        "recreate the dataset"
        for name, entry in _entries(index).items()
        if found.get(name) != {key: entry[key] for key in ("file", "bytes", "blake3")}
    ]
    if problems:
        raise DatasetError(problems)


def _entries(index: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return an index's shard entries, by file name.

    Raises:
        KeyError, TypeError, AttributeError: The document is not an index.
    """
    shards = [shard for split in index["splits"].values() for shard in split["shards"]]
    for shard in shards:
        _ = shard["bytes"], shard["blake3"]
    return {shard["file"]: shard for shard in shards}


def _published(backend: Backend) -> dict[str, Any]:
    """Return the published index. If it is missing or invalid, return an empty index, so that all files are written."""
    empty: dict[str, Any] = {"splits": {}}
    try:
        index: dict[str, Any] = json.loads(backend.get(RECORD_FILE))
        _entries(index)
    except (NotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return empty
    return index
