"""``python -m training tokenize``: creates a dataset from a folder of text files.

If a dataset made from the same text with the same settings already exists, the command does not change it. Interrupted
work is resumed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from blake3 import blake3
from tokenizers import Tokenizer

from training.data.dataset import RECORD_FILE, DatasetRecord, SourceRecord, SplitName, TokenizerRecord
from training.data.progress import Progress
from training.data.text import bpe
from training.data.text.decoding import Decoding
from training.data.text.destination import Destination, open_destination
from training.data.text.documents import Document, Piece, ReadOptions, document_bytes, documents, pieces
from training.data.text.files import Selection, Survey, survey
from training.data.text.formats import Format, JsonFiles
from training.data.text.parts import SPLITS, Encoding, encode_parts, group_pieces
from training.data.text.shards import ShardWriter, unigram_cross_entropy
from training.errors import TokenizeError

TOKENIZER_FILE = "tokenizer.json"
SOURCES_FILE = "sources.jsonl"
"""File that lists every source file with its format and losses, or the reason for skipping it."""
MIN_SAMPLE_BYTES = 4 * 1024 * 1024
SAMPLE_BYTES_PER_TOKEN = 1024
"""Amount of text per id for training the tokenizer. A small sample has the same frequent pairs as the complete text,
but the rare pairs in a large vocabulary require a larger sample."""
SMALL_CORPUS_BYTES = 64 * 1024 * 1024
"""In a corpus of up to this size, all documents are assigned to splits before the work starts, so that no split is
empty."""
INTERRUPTED_EXIT_CODE = 128 + signal.SIGINT
ALGORITHM = 3
"""Version of the algorithm; increase it if the same text and settings would produce a different dataset."""


@dataclass(frozen=True)
class Settings:
    """Settings that, together with the text, determine the dataset.

    Attributes:
        tokenizer_sha256: hash of the existing tokenizer to use; None: train a tokenizer.
    """

    vocabulary_size: int
    dtype: Literal["uint16", "uint32"]
    validation_share: float
    shard_tokens: int
    text_key: str
    decoding: Decoding
    json_files: JsonFiles
    tokenizer_sha256: str | None


def run_tokenize(options: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    Raises:
        TokenizeError: The options or the text are invalid; nothing was written.
    """
    tokenizer = None if options.tokenizer is None else bpe.load_tokenizer(options.tokenizer)
    settings = _settings(options, tokenizer)
    extensions = None
    if options.extensions:
        names = (name.strip().lstrip(".") for name in options.extensions.split(","))
        extensions = tuple(f".{name}" for name in names if name)
    destination = open_destination(options.output, options.name)
    started = time.monotonic()
    with Progress() as progress:
        progress.stage("reading files")
        selection = Selection(
            extensions,
            options.max_bytes,
            settings.text_key,
            settings.decoding,
            settings.json_files,
            options.skip_files,
        )
        found = survey(options.input, selection, progress.advance)
        source = _source(found, settings)
        existing = destination.existing()
        if existing is not None and existing.source.digest == source.digest and existing.name == options.name:
            sys.stdout.write(f"{destination.url}: unchanged\n")
            return 0
        try:
            builder = _DatasetBuilder(found, settings, tokenizer, destination, options.workers, progress)
            record = builder.build(options.name, source)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted; run the same command again to resume\n")
            return INTERRUPTED_EXIT_CODE
        except OSError as error:
            place = error.filename or destination.url
            raise TokenizeError(
                [
                    f"{place}: {error.strerror or error}; unfinished work is kept in {destination.unfinished()}; "
                    "fix the cause, for example by freeing disk space, and run the same command again"
                ]
            ) from error
    train, validation = record.splits["train"], record.splits["validation"]
    sys.stdout.write(
        f"{destination.url}: {train.tokens} train tokens in {train.documents} documents, {validation.tokens} "
        f"validation tokens in {validation.documents}; {record.bytes_per_token:.2f} bytes per token, unigram "
        f"cross-entropy {record.unigram_entropy_nats:.3f} nats; {_source_summary(record.source)}; "
        f"{time.monotonic() - started:.1f} s\n"
    )
    return 0


def _settings(options: argparse.Namespace, tokenizer: Tokenizer | None) -> Settings:
    problems = []
    named, size = "--vocabulary-size", options.vocabulary_size
    if tokenizer is not None:
        named, size = f"--tokenizer: {options.tokenizer}: vocabulary", bpe.vocabulary_size(tokenizer)
    elif size < bpe.MIN_VOCABULARY_SIZE:
        problems.append(
            f"{named}: {size}: must be at least {bpe.MIN_VOCABULARY_SIZE} (all bytes, and end of text); raise it"
        )
    dtype: Literal["uint16", "uint32"] = "uint16" if size <= 1 << 16 else "uint32"
    if options.dtype != "auto":
        dtype = options.dtype
    if dtype == "uint16" and size > 1 << 16:
        problems.append(f"{named}: {size}: does not fit --dtype uint16 (at most 65536); use uint32 or auto")
    if size > 1 << 32:
        problems.append(f"{named}: {size}: does not fit uint32; lower it")
    if not 0.0 < options.validation_share < 1.0:
        problems.append(f"--validation-share: {options.validation_share}: must be between 0 and 1, for example 0.05")
    for name in ("max_bytes", "workers", "shard_tokens"):
        value = getattr(options, name)
        if value is not None and value < 1:
            problems.append(f"--{name.replace('_', '-')}: {value}: must be at least 1; raise it")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", options.name):
        problems.append(f"--name: {options.name!r}: only letters, digits, '.', '_' and '-' are allowed; rename it")
    if problems:
        raise TokenizeError(problems)
    sha256 = None if tokenizer is None else hashlib.sha256(options.tokenizer.read_bytes()).hexdigest()
    return Settings(
        size,
        dtype,
        options.validation_share,
        options.shard_tokens,
        options.text_key,
        options.decoding,
        options.json,
        sha256,
    )


def _source(found: Survey, settings: Settings) -> SourceRecord:
    digest = blake3(json.dumps([ALGORITHM, asdict(settings)], sort_keys=True).encode())
    for file in found.files:
        digest.update(os.fsencode(f"{file.name}\0{file.used_bytes}\0{file.blake3}\n"))
    return SourceRecord(
        digest=digest.hexdigest(),
        files=len(found.files),
        bytes=found.total_bytes,
        formats=dict(sorted(Counter(str(file.form) for file in found.files).items())),
        skipped=found.skipped_by_reason(),
    )


def _source_summary(source: SourceRecord) -> str:
    formats = ", ".join(f"{form}: {count}" for form, count in source.formats.items())
    skipped = ", ".join(f"{reason}: {count}" for reason, count in source.skipped.items())
    lost = ", ".join(f"{what}: {count}" for what, count in source.losses.items())
    return (
        f"{source.files} files used ({formats}), {sum(source.skipped.values())} skipped"
        f"{f' ({skipped})' if skipped else ''}{f', losses ({lost})' if lost else ''}; see {SOURCES_FILE}"
    )


class _DatasetBuilder:
    """Builds a dataset's tokenizer, parts, shards and record, and publishes the dataset."""

    def __init__(
        self,
        found: Survey,
        settings: Settings,
        tokenizer: Tokenizer | None,
        destination: Destination,
        workers: int,
        progress: Progress,
    ) -> None:
        self._found = found
        self._settings = settings
        self._tokenizer = tokenizer
        self._destination = destination
        self._workers = workers
        self._progress = progress
        self._pieces = [piece for file in found.files for piece in pieces(file)]
        self._read_options = ReadOptions(document_bytes(found.total_bytes), settings.text_key, settings.decoding)
        self._losses: dict[str, Counter[str]] = {}

    def build(self, name: str, source: SourceRecord) -> DatasetRecord:
        """Build and publish the dataset, resuming interrupted work.

        Raises:
            TokenizeError: There is not enough text, or it is unsuitable for the settings; nothing was published.
            OSError: A file cannot be written; finished work remains.
        """
        with self._destination.workspace(source.digest) as workspace:
            validation_below = self._validation_below()
            directory, parts = workspace / "dataset", workspace / "parts"
            for each in (directory, parts):
                each.mkdir(exist_ok=True)
            tokenizer = self._write_tokenizer(directory / TOKENIZER_FILE, validation_below)
            encoding = Encoding(
                directory / TOKENIZER_FILE, self._read_options, validation_below, self._settings.dtype, parts
            )
            writers = self._write_shards(encoding, directory)
            losses = sum(self._losses.values(), Counter())
            source = source.model_copy(update={"losses": dict(sorted(losses.items()))})
            self._write_sources(directory / SOURCES_FILE)
            record = self._record(name, source, tokenizer, writers, directory)
            (directory / RECORD_FILE).write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
            self._progress.stage("publishing")
            self._destination.publish(directory)
        return record

    def _validation_below(self) -> float:
        """Return the configured share or, if it leaves a split empty, a limit that holds out one document."""
        share = self._settings.validation_share
        if self._found.total_bytes > SMALL_CORPUS_BYTES:
            return share
        places = sorted(document.place() for document in self._all_documents())
        if len(places) < 2:
            raise TokenizeError(
                [
                    f"{self._found.files[0].path}: only one document; train and validation need at least one each; add "
                    "text"
                ]
            )
        return share if places[0] < share <= places[-1] else (places[0] + places[1]) / 2

    def _all_documents(self) -> Iterator[Document]:
        for piece in self._pieces:
            form = piece.file.form
            if form == Format("text") and piece.file.used_bytes <= self._read_options.document_bytes:
                yield Document(piece.file.name, "")  # the caller uses only the name, so the file is not read
            else:
                yield from documents(piece, self._read_options)

    def _write_tokenizer(self, file: Path, validation_below: float) -> Tokenizer:
        if file.exists():
            return bpe.load_tokenizer(file)
        tokenizer = self._tokenizer
        if tokenizer is None:
            self._progress.stage("training the tokenizer")
            tokenizer = bpe.train_tokenizer(self._sample(validation_below), self._settings.vocabulary_size)
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        unfinished.replace(file)
        return tokenizer

    def _sample(self, validation_below: float) -> Iterator[str]:
        """Yield train text for the tokenizer, from random pieces."""
        target = max(MIN_SAMPLE_BYTES, SAMPLE_BYTES_PER_TOKEN * self._settings.vocabulary_size)
        taken = 0
        for piece in sorted(self._pieces, key=lambda piece: blake3(os.fsencode(piece.name)).digest()):
            for document in documents(piece, self._read_options):
                if taken >= target:
                    return
                if document.place() >= validation_below:
                    taken += len(document.text)
                    yield document.text

    def _write_shards(self, encoding: Encoding, directory: Path) -> dict[SplitName, ShardWriter]:
        settings = self._settings
        writers = {
            split: ShardWriter(directory, split, settings.dtype, settings.vocabulary_size, settings.shard_tokens)
            for split in SPLITS
        }
        groups: list[list[Piece]] = group_pieces(self._pieces, self._found.total_bytes)
        self._progress.stage("encoding", self._found.total_bytes)
        for group, part in zip(groups, encode_parts(groups, encoding, self._workers), strict=True):
            for split in SPLITS:
                writers[split].append(part.splits[split], encoding.directory)
            for name, counts in part.losses.items():
                self._losses.setdefault(name, Counter()).update(counts)
            self._progress.advance(sum(piece.bytes for piece in group))
        return writers

    def _write_sources(self, file: Path) -> None:
        """List the source files, used files first, in order of use."""
        lines: list[dict[str, object]] = [
            {
                "file": each.name,
                "format": str(each.form),
                "bytes": each.used_bytes,
                "blake3": each.blake3,
                **self._losses.get(each.name, {}),
            }
            for each in self._found.files
        ]
        lines += [{"file": name, "skipped": reason} for name, reason in self._found.skipped.items()]
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")

    def _record(
        self,
        name: str,
        source: SourceRecord,
        tokenizer: Tokenizer,
        writers: dict[SplitName, ShardWriter],
        directory: Path,
    ) -> DatasetRecord:
        splits = {split: writer.finish() for split, writer in writers.items()}
        empty = [split for split, record in splits.items() if not record.tokens]
        if empty:
            raise TokenizeError(
                [
                    f"--validation-share: {self._settings.validation_share}: leaves no document for {split}; "
                    "change it, or add text"
                    for split in empty
                ]
            )
        train, validation = writers["train"], writers["validation"]
        return DatasetRecord(
            schema_version=1,
            name=name,
            dtype=self._settings.dtype,
            vocabulary_size=self._settings.vocabulary_size,
            tokenizer=TokenizerRecord(
                file=TOKENIZER_FILE, sha256=hashlib.sha256((directory / TOKENIZER_FILE).read_bytes()).hexdigest()
            ),
            end_of_text_id=bpe.end_of_text_id(tokenizer),
            bytes_per_token=validation.text_bytes / splits["validation"].tokens,
            unigram_entropy_nats=unigram_cross_entropy(train.counts, validation.counts),
            splits=splits,
            source=source,
        )
