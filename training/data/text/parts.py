"""Encodes text in several processes. Each process writes its parts atomically, so that the work can be resumed.

Worker processes import this module, so it does not import slow modules.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from training.data.text.bpe import (
    Encoder,
    Ids,
    TiktokenVocabulary,
    end_of_text_id,
    load_tokenizer,
    open_encoder,
    tiktoken_vocabulary,
)
from training.data.text.documents import Document, Piece, ReadOptions, documents
from training.process.children import end_with_parent

if TYPE_CHECKING:
    from training.data.dataset import SplitName

SPLITS: tuple[SplitName, ...] = ("train", "validation")
TARGET_PARTS = 64
"""Number of parts in a medium-sized corpus. Each process encodes many, so that all finish at about the same time."""
MIN_PART_BYTES = 1 << 18
MAX_PART_BYTES = 1 << 24
BATCH_BYTES = 1 << 20
"""Amount of text per encoder call."""


@dataclass(frozen=True)
class Encoding:
    """Encoding settings.

    Attributes:
        tokenizer_file: path to tokenizer.json.
        read_options: how files are split into documents.
        validation_below: documents with a :meth:`Document.place` below this limit belong to validation.
        dtype: type of the token ids in the file.
        directory: directory for the parts.
    """

    tokenizer_file: Path
    read_options: ReadOptions
    validation_below: float
    dtype: str
    directory: Path


@dataclass(frozen=True)
class SplitPart:
    """A part's contribution to a split.

    Attributes:
        file: file with the token ids.
        documents: number of documents.
        text_bytes: number of UTF-8 bytes in the documents.
    """

    file: str
    documents: int
    text_bytes: int


@dataclass(frozen=True)
class Part:
    """A finished part.

    Attributes:
        splits: contribution to each split.
        losses: counts of lost characters, lines and records, by file.
    """

    splits: dict[SplitName, SplitPart]
    losses: dict[str, dict[str, int]]


def group_pieces(pieces: Iterable[Piece], total_bytes: int) -> list[list[Piece]]:
    """Group consecutive pieces into parts. The result depends on the text, not on the number of workers."""
    target = min(MAX_PART_BYTES, max(MIN_PART_BYTES, total_bytes // TARGET_PARTS))
    groups: list[list[Piece]] = [[]]
    size = 0
    for piece in pieces:
        if size >= target:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += piece.bytes
    return groups


def encode_parts(groups: list[list[Piece]], encoding: Encoding, workers: int) -> Iterator[Part]:
    """Encode the unfinished parts in ``workers`` processes; yield all parts, in order.

    Raises:
        TokenizeError: The text is invalid. Finished parts remain on disk.
        OSError: A part cannot be written.
    """
    missing = {number: groups[number] for number in range(len(groups)) if _finished(encoding, number) is None}
    vocabulary = tiktoken_vocabulary(load_tokenizer(encoding.tokenizer_file)) if missing else None
    if workers == 1 or len(missing) <= 1:
        encoder = _PartEncoder(encoding, vocabulary) if missing else None
        for number in range(len(groups)):
            yield encoder.encode(number, groups[number]) if encoder and number in missing else _read(encoding, number)
        return
    # Do not fork: the threads that the tokenizer started during training would not exist in the child.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(workers, len(missing)), context, initializer=_start_worker, initargs=(encoding, vocabulary)
    )
    try:
        futures = {number: pool.submit(_encode_in_worker, number, group) for number, group in missing.items()}
        for number in range(len(groups)):
            yield futures.pop(number).result() if number in futures else _read(encoding, number)
    finally:
        pool.shutdown(cancel_futures=True)


def _record_file(encoding: Encoding, number: int) -> Path:
    return encoding.directory / f"{number:06d}.json"


def _finished(encoding: Encoding, number: int) -> Part | None:
    file = _record_file(encoding, number)
    if not file.exists():
        return None
    record = json.loads(file.read_text(encoding="utf-8"))
    return Part({split: SplitPart(**record["splits"][split]) for split in SPLITS}, record["losses"])


def _read(encoding: Encoding, number: int) -> Part:
    part = _finished(encoding, number)
    assert part is not None, "encode_parts has checked that it exists"
    return part


class _PartEncoder:
    def __init__(self, encoding: Encoding, vocabulary: TiktokenVocabulary | None) -> None:
        tokenizer = load_tokenizer(encoding.tokenizer_file)
        self._end_of_text_id = end_of_text_id(tokenizer)
        self._encoder: Encoder = open_encoder(tokenizer, vocabulary)
        self._encoding = encoding

    def encode(self, number: int, pieces: list[Piece]) -> Part:
        ids: dict[SplitName, list[npt.NDArray[np.unsignedinteger]]] = {split: [] for split in SPLITS}
        text_bytes = dict.fromkeys(SPLITS, 0)
        losses: dict[str, Counter[str]] = {}
        for batch in _batches(
            document
            for piece in pieces
            for document in documents(piece, self._encoding.read_options, losses.setdefault(piece.file.name, Counter()))
        ):
            for document, tokens in zip(batch, self._encoder.encode([each.text for each in batch]), strict=True):
                is_validation = document.place() < self._encoding.validation_below
                split: SplitName = "validation" if is_validation else "train"
                ids[split].append(self._ended(tokens))
                text_bytes[split] += len(document.text.encode())
        splits: dict[SplitName, SplitPart] = {}
        for split in SPLITS:
            file = f"{number:06d}.{split}"
            with (self._encoding.directory / file).open("wb") as output:
                output.writelines(tokens.tobytes() for tokens in ids[split])
            splits[split] = SplitPart(file, len(ids[split]), text_bytes[split])
        part = Part(splits, {name: dict(+counts) for name, counts in losses.items() if +counts})
        record = _record_file(self._encoding, number)
        unfinished = record.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(asdict(part)), encoding="utf-8")
        unfinished.replace(record)
        return part

    def _ended(self, tokens: Ids) -> npt.NDArray[np.unsignedinteger]:
        """Convert ids to the file's type, and append the end-of-text token."""
        result = np.empty(len(tokens) + 1, dtype=np.dtype(self._encoding.dtype).newbyteorder("<"))
        result[:-1] = tokens
        result[-1] = self._end_of_text_id
        return result


_encoder: list[_PartEncoder] = []


def _start_worker(encoding: Encoding, vocabulary: TiktokenVocabulary | None) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to stop
    end_with_parent()
    _encoder.append(_PartEncoder(encoding, vocabulary))


def _encode_in_worker(number: int, pieces: list[Piece]) -> Part:
    return _encoder[0].encode(number, pieces)


def _batches(found: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in found:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
