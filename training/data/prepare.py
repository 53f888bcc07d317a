"""Prepared datasets: runs the function configured in `training.prepare`, and lists or removes its results.

`python -m training prepare` runs the function on a node, or anywhere to test it. `python -m training prepared` lists
and removes the datasets that nodes prepared. Section 6 of docs/architecture.md describes their layout in the
bucket: `prepared/<digest>/` under the datasets, with `prepared.json` as the commit. Prepared datasets do not expire,
because only users know which runs still need them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.urls import open_backend
from training.data.arguments import SHARD_TOKENS, VALIDATION_SHARE
from training.data.publish import files_to_publish
from training.errors import DatasetError
from training.user_code import call

if TYPE_CHECKING:
    from training.data.text.decoding import Decoding
    from training.data.text.formats import JsonFiles

KEY = "training.prepare.function"
FOLDER = "prepared/"
COMMIT = "prepared.json"
SECONDS_PER_DAY = 86400
SHOWN_DIGITS = 12


def run_prepare(options: argparse.Namespace) -> int:
    """Run ``python -m training prepare``; return its exit code.

    Raises:
        ConfigurationError: The function does not exist, or does not accept the options.
        DatasetError: The function's output cannot be published.
    """
    folder = options.target
    given = {} if options.options is None else _options(options.options)
    folder.mkdir(parents=True, exist_ok=True)
    call(options.function, KEY, given, source=options.source, target=folder)
    try:
        files_to_publish(folder)
    except DatasetError as error:
        raise DatasetError([f"{KEY}: {options.function}: {problem}" for problem in error.problems]) from error
    return 0


def _options(path: Path) -> dict[str, Any]:
    try:
        given = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetError([f"--options: {path}: cannot read ({error}); specify a JSON file"]) from error
    if not isinstance(given, dict):
        raise DatasetError([f"--options: {path}: must be a JSON object with the function's options; correct it"])
    return given


def tokenize(
    source: Path,
    target: Path,
    *,
    vocabulary_size: int,
    text_key: str = "text",
    decoding: Decoding = "strict",
    json_files: JsonFiles = "records",
    skip_files: bool = False,
    extensions: str | None = None,
    max_bytes: int | None = None,
    validation_share: float = VALIDATION_SHARE,
    shard_tokens: int = SHARD_TOKENS,
) -> None:
    """Create a token dataset from text, JSON, JSON Lines and Parquet files, as ``python -m training tokenize`` does.

    Trainstack provides this function for use in `training.prepare`.

    Args:
        source: folder with the text files.
        target: directory for the new dataset.
        vocabulary_size: number of ids in the tokenizer, which is trained on the texts; at least 257.
        text_key: key (JSON Lines) or column (Parquet) with a document's text.
        decoding: policy for invalid characters: ``strict`` fails, ``replace`` replaces each with U+FFFD,
            ``skip-line`` skips their lines.
        json_files: ``records``: JSON files contain records with ``text_key``; ``text``: use them as plain text.
        skip_files: skip files that are not text instead of failing.
        extensions: use only files with these extensions, such as ``.py,.txt``; None: all text files.
        max_bytes: use about this much text, selected by path hash.
        validation_share: share of the documents to hold out for validation.
        shard_tokens: maximum tokens per shard file.

    Raises:
        TokenizeError: The options or the text are invalid.
    """
    from training.data.text.tokenize import run_tokenize  # slow to import, and not needed by other functions

    arguments = argparse.Namespace(
        input=source,
        output=str(target.parent),
        name=target.name,
        tokenizer=None,
        vocabulary_size=vocabulary_size,
        text_key=text_key,
        decoding=decoding,
        json=json_files,
        skip_files=skip_files,
        dtype="auto",
        extensions=extensions,
        max_bytes=max_bytes,
        workers=len(os.sched_getaffinity(0)),
        validation_share=validation_share,
        shard_tokens=shard_tokens,
    )
    run_tokenize(arguments)


@dataclass(frozen=True)
class PreparedDataset:
    """A dataset under `prepared/`.

    Attributes:
        digest: digest of source, function and options; the dataset's name.
        keys: keys of all objects in the dataset.
        facts: contents of the commit; None if the dataset was never finished, or the commit is damaged.
    """

    digest: str
    keys: tuple[str, ...]
    facts: dict[str, Any] | None

    def line(self, now_unix_seconds: float) -> str:
        """Return this dataset's line in the list."""
        if self.facts is None:
            return f"{self.digest[:SHOWN_DIGITS]}  unfinished or damaged, {len(self.keys)} objects"
        days = (now_unix_seconds - self.facts["unix_seconds"]) / SECONDS_PER_DAY
        options = json.dumps(self.facts["options"], sort_keys=True)
        return (
            f"{self.digest[:SHOWN_DIGITS]}  {self.facts['bytes']} bytes, {days:.1f} days old: {self.facts['function']} "
            f"of {self.facts['source']} with {options}"
        )


def run_prepared(options: argparse.Namespace) -> int:
    """Run ``python -m training prepared``; return its exit code.

    Raises:
        DatasetError: A digest to remove does not match exactly one dataset; nothing was removed.
        StoreError: The store does not respond.
    """
    backend = open_backend(options.datasets)
    found = prepared_datasets(backend)
    now = time.time()
    if not options.remove and options.older_than_days is None:
        lines = "".join(f"{each.line(now)}\n" for each in found)
        sys.stdout.write(lines or f"{backend.url}: no prepared datasets\n")
        return 0
    chosen = {each.digest: each for each in _named(found, options.remove)}
    if options.older_than_days is not None:
        latest = now - options.older_than_days * SECONDS_PER_DAY
        chosen |= {each.digest: each for each in found if each.facts and each.facts["unix_seconds"] < latest}
    for each in chosen.values():
        # Delete the commit first. A node that checks later prepares the dataset again and never stages part of it.
        keys = sorted(each.keys, key=lambda key: (PurePosixPath(key).name != COMMIT, key))
        backend.delete(keys[:1])
        backend.delete(keys[1:])
        sys.stdout.write(f"{each.line(now)}: removed\n")
    sys.stdout.write(f"{len(chosen)} of {len(found)} removed\n")
    return 0


def prepared_datasets(backend: Backend) -> list[PreparedDataset]:
    """Return a store's prepared datasets, oldest first and unfinished datasets last."""
    keys: dict[str, list[str]] = {}
    for key in backend.keys(FOLDER):
        keys.setdefault(key.split("/")[1], []).append(key)
    found = []
    for digest, names in keys.items():
        commit = f"{FOLDER}{digest}/{COMMIT}"
        facts = _facts(backend.get(commit)) if commit in names else None
        found.append(PreparedDataset(digest, tuple(names), facts))
    return sorted(found, key=lambda each: (each.facts or {}).get("unix_seconds", float("inf")))


def _facts(content: bytes) -> dict[str, Any] | None:
    """Return the contents of a commit; None if it is damaged. Nodes cannot use such a dataset either."""
    try:
        facts = json.loads(content)
        complete = {"function", "source", "options", "bytes"} <= facts.keys() and math.isfinite(facts["unix_seconds"])
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
        return None
    return facts if complete else None


def _named(found: list[PreparedDataset], digests: list[str]) -> list[PreparedDataset]:
    problems, named = [], []
    for digest in digests:
        matching = [each for each in found if each.digest.startswith(digest)]
        if len(matching) != 1:
            problems.append(f"--remove: {digest}: matches {len(matching)} datasets; specify a digest from the list")
        named += matching
    if problems:
        raise DatasetError(problems)
    return named
