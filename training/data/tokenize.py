"""``python -m training tokenize``: a folder of text becomes a dataset.

The work is skipped when the dataset is there already, made from the same text with the same settings; and gone on with
where it was, when it was interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from blake3 import blake3
from tokenizers import Tokenizer

from training.data import bpe
from training.data.dataset import RECORD_FILE, DatasetRecord, SourceRecord, SplitName, TokenizerRecord
from training.data.documents import Document, Piece, Reading, document_bytes, documents, pieces
from training.data.parts import SPLITS, Encoding, divide, make_parts
from training.data.progress import Progress
from training.data.publication import Destination, open_destination
from training.data.shards import ShardWriter, unigram_cross_entropy
from training.data.text import Survey, survey
from training.errors import TokenizeError

TOKENIZER_FILE = "tokenizer.json"
SMALLEST_SAMPLE_BYTES = 4 * 1024 * 1024
SAMPLE_BYTES_PER_TOKEN = 1024
"""Train text that the tokenizer's merges are learned from: frequent pairs are the same ones in a sample, but the rare
ones of a large vocabulary need a larger one."""
COUNTED_BYTES = 64 * 1024 * 1024
"""Up to so much text documents are counted before they are divided, lest chance leave a split empty."""
INTERRUPTED_EXIT_CODE = 128 + signal.SIGINT
ALGORITHM = 2
"""Counted up when the same text and settings come to give another dataset."""


@dataclass(frozen=True)
class Settings:
    """What shapes a dataset, beside the text.

    Attributes:
        tokenizer_sha256: of the tokenizer that is used; None: one is trained.
    """

    vocabulary_size: int
    dtype: Literal["uint16", "uint32"]
    validation_share: float
    shard_tokens: int
    text_key: str
    tokenizer_sha256: str | None


def run_tokenize(options: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    Raises:
        TokenizeError: wrong options or text; nothing was written.
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
        progress.stage("looking at files")
        found = survey(options.input, extensions, options.max_bytes, settings.text_key, progress.advance)
        source = _source(found, settings)
        existing = destination.existing()
        if existing is not None and existing.source.digest == source.digest and existing.name == options.name:
            sys.stdout.write(f"{destination.url}: unchanged\n")
            return 0
        try:
            made = _Making(found, settings, tokenizer, destination, options.workers, progress)
            record = made.make(options.name, source)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted; the same command goes on where it was\n")
            return INTERRUPTED_EXIT_CODE
        except OSError as error:
            place = error.filename or destination.url
            raise TokenizeError(
                [
                    f"{place}: {error.strerror or error}; what is done is kept in {destination.unfinished()}: correct "
                    "that, such as by freeing space, and run the same command again"
                ]
            ) from error
    train, validation = record.splits["train"], record.splits["validation"]
    sys.stdout.write(
        f"{destination.url}: {train.tokens} train tokens in {train.documents} documents, {validation.tokens} "
        f"validation tokens in {validation.documents}; {record.bytes_per_token:.2f} bytes a token, unigram "
        f"cross-entropy {record.unigram_entropy_nats:.3f} nats; {source.files} files used, {found.skipped} skipped "
        f"as not text; {time.monotonic() - started:.1f} s\n"
    )
    return 0


def _settings(options: argparse.Namespace, tokenizer: Tokenizer | None) -> Settings:
    problems = []
    named, size = "--vocabulary-size", options.vocabulary_size
    if tokenizer is not None:
        named, size = f"--tokenizer: {options.tokenizer}: vocabulary", bpe.vocabulary_size(tokenizer)
    elif size < bpe.SMALLEST_VOCABULARY:
        problems.append(
            f"{named}: {size} is less than {bpe.SMALLEST_VOCABULARY} (every byte, and the end of text); raise it"
        )
    dtype: Literal["uint16", "uint32"] = "uint16" if size <= 1 << 16 else "uint32"
    if options.dtype != "auto":
        dtype = options.dtype
    if dtype == "uint16" and size > 1 << 16:
        problems.append(f"{named}: {size} does not fit --dtype uint16, which ends at 65536; say uint32 or auto")
    if size > 1 << 32:
        problems.append(f"{named}: {size} does not fit uint32; lower it")
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
    sha256 = None if tokenizer is None else hashlib.sha256(options.tokenizer.read_bytes()).hexdigest()
    return Settings(size, dtype, options.validation_share, options.shard_tokens, options.text_key, sha256)


def _source(found: Survey, settings: Settings) -> SourceRecord:
    digest = blake3(json.dumps([ALGORITHM, asdict(settings)], sort_keys=True).encode())
    for file in found.files:
        digest.update(f"{file.name}\0{file.used_bytes}\0{file.blake3}\n".encode())
    return SourceRecord(digest=digest.hexdigest(), files=len(found.files), bytes=found.total_bytes)


class _Making:
    """The making of one dataset: tokenizer, parts, shards, record, publication."""

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
        self._reading = Reading(document_bytes(found.total_bytes), settings.text_key)

    def make(self, name: str, source: SourceRecord) -> DatasetRecord:
        """Make and publish it, or go on where an earlier making was interrupted.

        Raises:
            TokenizeError: the text is too little, or disagrees with the settings; nothing was published.
            OSError: something cannot be written; what is done stays.
        """
        with self._destination.workspace(source.digest) as workspace:
            validation_below = self._validation_below()
            directory, parts = workspace / "dataset", workspace / "parts"
            for each in (directory, parts):
                each.mkdir(exist_ok=True)
            tokenizer = self._write_tokenizer(directory / TOKENIZER_FILE, validation_below)
            encoding = Encoding(
                directory / TOKENIZER_FILE, self._reading, validation_below, self._settings.dtype, parts
            )
            record = self._record(name, source, tokenizer, self._write_shards(encoding, directory), directory)
            (directory / RECORD_FILE).write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
            self._progress.stage("publishing")
            self._destination.publish(directory)
        return record

    def _validation_below(self) -> float:
        """The wanted share; or, where chance would leave a split empty, what holds out the one first document."""
        share = self._settings.validation_share
        if self._found.total_bytes > COUNTED_BYTES:
            return share
        places = sorted(document.place() for document in self._all_documents())
        if len(places) < 2:
            raise TokenizeError(
                [
                    f"{self._found.files[0].path}: is the only document; train and validation need one each, so give "
                    "more text"
                ]
            )
        return share if places[0] < share <= places[-1] else (places[0] + places[1]) / 2

    def _all_documents(self) -> Iterator[Document]:
        for piece in self._pieces:
            if piece.file.kind == "text" and piece.file.used_bytes <= self._reading.document_bytes:
                yield Document(piece.file.name, "")  # only its name is asked for, which costs no reading
            else:
                yield from documents(piece, self._reading)

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
        """Train text for the tokenizer, out of pieces from everywhere."""
        wanted = max(SMALLEST_SAMPLE_BYTES, SAMPLE_BYTES_PER_TOKEN * self._settings.vocabulary_size)
        taken = 0
        for piece in sorted(self._pieces, key=lambda piece: blake3(piece.name.encode()).digest()):
            for document in documents(piece, self._reading):
                if taken >= wanted:
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
        works: list[list[Piece]] = divide(self._pieces, self._found.total_bytes)
        self._progress.stage("encoding", self._found.total_bytes)
        for work, part in zip(works, make_parts(works, encoding, self._workers), strict=True):
            for split in SPLITS:
                writers[split].append(part.splits[split], encoding.directory)
            self._progress.advance(sum(piece.bytes for piece in work))
        return writers

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
                    f"--validation-share: {self._settings.validation_share} leaves no document for {split}; "
                    "change it, or give more text"
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
