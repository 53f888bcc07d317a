"""``python -m training tokenize``: a folder of text becomes a dataset.

The work is skipped when the dataset is there already, made from the same text with the same settings.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from blake3 import blake3

from training.data.dataset import RECORD_FILE, DatasetRecord, SourceRecord, SplitName, TokenizerRecord
from training.data.encoding import (
    SMALLEST_VOCABULARY,
    Splitting,
    encode_files,
    end_of_text_id,
    train_tokenizer,
)
from training.data.publication import Destination, open_destination
from training.data.shards import ShardWriter, unigram_cross_entropy
from training.data.text import Document, Survey, document_bytes, documents, survey
from training.errors import TokenizeError

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_SAMPLE_BYTES = 4 * 1024 * 1024
"""Train text that the tokenizer's merges are learned from: frequent pairs are the same ones in a sample."""
ALGORITHM = 1
"""Counted up when the same text and settings come to give another dataset."""


@dataclass(frozen=True)
class Settings:
    """What shapes a dataset, beside the text."""

    vocabulary_size: int
    dtype: Literal["uint16", "uint32"]
    validation_share: float
    shard_tokens: int


def run_tokenize(options: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    Raises:
        TokenizeError: wrong options or text; nothing was written.
    """
    settings = _settings(options)
    extensions = None
    if options.extensions:
        names = (name.strip().lstrip(".") for name in options.extensions.split(","))
        extensions = tuple(f".{name}" for name in names if name)
    destination = open_destination(options.output, options.name)
    found = survey(options.input, extensions, options.max_bytes)
    source = _source(found, settings)
    existing = destination.existing()
    if existing is not None and existing.source.digest == source.digest and existing.name == options.name:
        sys.stdout.write(f"{destination.url}: unchanged\n")
        return 0
    started = time.monotonic()
    try:
        record = make_dataset(found, settings, options.name, source, destination, options.workers)
    except OSError as error:
        place = error.filename or destination.url
        raise TokenizeError([f"{place}: {error.strerror}; nothing was made, so free space and try again"]) from error
    train, validation = record.splits["train"], record.splits["validation"]
    sys.stdout.write(
        f"{destination.url}: {train.tokens} train tokens in {train.documents} documents, {validation.tokens} "
        f"validation tokens in {validation.documents}; {record.bytes_per_token:.2f} bytes a token, unigram "
        f"cross-entropy {record.unigram_entropy_nats:.3f} nats; {source.files} files used, {found.skipped} skipped "
        f"as not text; {time.monotonic() - started:.1f} s\n"
    )
    return 0


def _settings(options: argparse.Namespace) -> Settings:
    problems = []
    size = options.vocabulary_size
    if size < SMALLEST_VOCABULARY:
        problems.append(
            f"--vocabulary-size: {size} is less than {SMALLEST_VOCABULARY} (every byte, and the end of text); raise it"
        )
    dtype: Literal["uint16", "uint32"] = "uint16" if size <= 1 << 16 else "uint32"
    if options.dtype != "auto":
        dtype = options.dtype
    if dtype == "uint16" and size > 1 << 16:
        problems.append(
            f"--vocabulary-size: {size} does not fit --dtype uint16, which ends at 65536; say uint32 or auto"
        )
    if size > 1 << 32:
        problems.append(f"--vocabulary-size: {size} does not fit uint32; lower it")
    if not 0.0 < options.validation_share < 1.0:
        problems.append(f"--validation-share: {options.validation_share} is not between 0 and 1; 0.05 is usual")
    for name in ("max_bytes", "workers", "shard_tokens"):
        value = getattr(options, name)
        if value is not None and value < 1:
            problems.append(f"--{name.replace('_', '-')}: {value} is less than 1; raise it")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", options.name):
        problems.append(f"--name: {options.name!r} may have letters, digits, '.', '_' and '-' only; rename it")
    if problems:
        raise TokenizeError(problems)
    return Settings(size, dtype, options.validation_share, options.shard_tokens)


def _source(found: Survey, settings: Settings) -> SourceRecord:
    digest = blake3(json.dumps([ALGORITHM, asdict(settings)], sort_keys=True).encode())
    for file in found.files:
        digest.update(f"{file.name}\0{file.used_bytes}\0{file.blake3}\n".encode())
    return SourceRecord(digest=digest.hexdigest(), files=len(found.files), bytes=found.total_bytes)


def make_dataset(
    found: Survey, settings: Settings, name: str, source: SourceRecord, destination: Destination, workers: int
) -> DatasetRecord:
    """Train the tokenizer, encode, and publish.

    Raises:
        TokenizeError: the text is too little, or disagrees with the settings; nothing was published.
    """
    splitting = _choose_splitting(found, settings.validation_share)
    with destination.workspace() as directory, _Progress(found.total_bytes) as progress:
        progress.stage("training the tokenizer")
        tokenizer = train_tokenizer(_sample(found, splitting), settings.vocabulary_size)
        tokenizer_file = directory / TOKENIZER_FILE
        tokenizer_file.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        progress.stage("encoding")
        names: tuple[SplitName, ...] = ("train", "validation")
        writers = {
            split: ShardWriter(directory, split, settings.dtype, settings.vocabulary_size, settings.shard_tokens)
            for split in names
        }
        for done_bytes, encoded in encode_files(tokenizer_file, found.files, splitting, workers):
            for document in encoded:
                writers["validation" if document.is_validation else "train"].append(document)
            progress.advance(done_bytes)
        splits = {split: writer.finish() for split, writer in writers.items()}
        train, validation = writers["train"], writers["validation"]
        record = DatasetRecord(
            schema_version=1,
            name=name,
            dtype=settings.dtype,
            vocabulary_size=settings.vocabulary_size,
            tokenizer=TokenizerRecord(
                file=TOKENIZER_FILE, sha256=hashlib.sha256(tokenizer_file.read_bytes()).hexdigest()
            ),
            end_of_text_id=end_of_text_id(tokenizer),
            bytes_per_token=validation.text_bytes / splits["validation"].tokens,
            unigram_entropy_nats=unigram_cross_entropy(train.counts, validation.counts),
            splits=splits,
            source=source,
        )
        (directory / RECORD_FILE).write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
        progress.stage("publishing")
        destination.publish(directory)
    return record


def _choose_splitting(found: Survey, validation_share: float) -> Splitting:
    """Divide by the wanted share, or, where chance would leave a split empty, hold out the one first document."""
    splitting = Splitting(document_bytes(found.total_bytes), validation_share)
    places = sorted(document.place() for document in _all_documents(found, splitting))
    if len(places) < 2:
        raise TokenizeError(
            [f"{found.files[0].path}: is the only document; train and validation need one each, so give more text"]
        )
    if places[0] < validation_share <= places[-1]:
        return splitting
    return replace(splitting, validation_below=(places[0] + places[1]) / 2)


def _all_documents(found: Survey, splitting: Splitting) -> Iterator[Document]:
    for file in found.files:
        if file.used_bytes <= splitting.document_bytes:
            yield Document(file.name, "")  # only its name is asked for, which costs no reading
        else:
            yield from documents(file, splitting.document_bytes)


def _sample(found: Survey, splitting: Splitting) -> Iterator[str]:
    """Train text for the tokenizer; files come in the order of their names' hashes, so the first are a fair sample."""
    taken = 0
    for file in found.files:
        for document in documents(file, splitting.document_bytes):
            if taken >= TOKENIZER_SAMPLE_BYTES:
                return
            if not splitting.is_validation(document):
                taken += len(document.text)
                yield document.text


class _Progress:
    """A bar on a terminal; nothing where there is none."""

    def __init__(self, total_bytes: int) -> None:
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("", total=total_bytes)

    def __enter__(self) -> _Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, description: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=description)

    def advance(self, done_bytes: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, done_bytes)
