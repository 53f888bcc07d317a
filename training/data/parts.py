"""Encoding in several processes: each makes a part of the dataset, whole or not at all, so that work can be resumed.

Runs in worker processes too, so it imports nothing heavy.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from training.data.bpe import Encoder, Ids, TiktokenForm, end_of_text_id, load_tokenizer, open_encoder, tiktoken_form
from training.data.child_process import end_with_parent
from training.data.documents import Document, Piece, Reading, documents

if TYPE_CHECKING:
    from training.data.dataset import SplitName

SPLITS: tuple[SplitName, ...] = ("train", "validation")
PARTS_WANTED = 64
"""Parts of a corpus that is neither very small nor very large: many for each process, so that all end together."""
SMALLEST_PART_BYTES = 1 << 18
LARGEST_PART_BYTES = 1 << 24
ENCODED_BYTES = 1 << 20
"""Text that is handed to the encoder at a time."""


@dataclass(frozen=True)
class Encoding:
    """How parts are made.

    Attributes:
        tokenizer_file: a tokenizer.json.
        reading: how documents are found.
        validation_below: documents whose place is below this are validation.
        dtype: of a token id in the file.
        directory: where parts go.
    """

    tokenizer_file: Path
    reading: Reading
    validation_below: float
    dtype: str
    directory: Path


@dataclass(frozen=True)
class SplitPart:
    """What a part adds to a split.

    Attributes:
        file: of token ids.
        documents: in it.
        text_bytes: UTF-8 bytes of the documents.
    """

    file: str
    documents: int
    text_bytes: int


@dataclass(frozen=True)
class Part:
    """A finished part."""

    splits: dict[SplitName, SplitPart]


def divide(pieces: Iterable[Piece], total_bytes: int) -> list[list[Piece]]:
    """Group pieces, in order, into the work of a part each; depends on the text alone, not on who does the work."""
    wanted = min(LARGEST_PART_BYTES, max(SMALLEST_PART_BYTES, total_bytes // PARTS_WANTED))
    works: list[list[Piece]] = [[]]
    size = 0
    for piece in pieces:
        if size >= wanted:
            works.append([])
            size = 0
        works[-1].append(piece)
        size += piece.bytes
    return works


def make_parts(works: list[list[Piece]], encoding: Encoding, workers: int) -> Iterator[Part]:
    """Make the parts that are not there yet, in ``workers`` processes; yield all, in order.

    Raises:
        TokenizeError: the text cannot be used; parts that are finished stay.
        OSError: a part cannot be written.
    """
    missing = {number: works[number] for number in range(len(works)) if _finished(encoding, number) is None}
    form = tiktoken_form(load_tokenizer(encoding.tokenizer_file)) if missing else None
    if workers == 1 or len(missing) <= 1:
        maker = _PartMaker(encoding, form) if missing else None
        for number in range(len(works)):
            yield maker.make(number, works[number]) if maker and number in missing else _read(encoding, number)
        return
    # Not by fork: the tokenizer's own threads, which training it has started, do not survive one.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(workers, len(missing)), context, initializer=_start_worker, initargs=(encoding, form)
    )
    try:
        made = {number: pool.submit(_make_in_worker, number, work) for number, work in missing.items()}
        for number in range(len(works)):
            yield made.pop(number).result() if number in made else _read(encoding, number)
    finally:
        pool.shutdown(cancel_futures=True)


def _record_file(encoding: Encoding, number: int) -> Path:
    return encoding.directory / f"{number:06d}.json"


def _finished(encoding: Encoding, number: int) -> Part | None:
    file = _record_file(encoding, number)
    if not file.exists():
        return None
    record = json.loads(file.read_text(encoding="utf-8"))
    return Part({split: SplitPart(**record[split]) for split in SPLITS})


def _read(encoding: Encoding, number: int) -> Part:
    part = _finished(encoding, number)
    assert part is not None, "looked for a moment ago"
    return part


class _PartMaker:
    def __init__(self, encoding: Encoding, form: TiktokenForm | None) -> None:
        tokenizer = load_tokenizer(encoding.tokenizer_file)
        self._end_of_text_id = end_of_text_id(tokenizer)
        self._encoder: Encoder = open_encoder(tokenizer, form)
        self._encoding = encoding

    def make(self, number: int, pieces: list[Piece]) -> Part:
        ids: dict[SplitName, list[npt.NDArray[np.unsignedinteger]]] = {split: [] for split in SPLITS}
        text_bytes = dict.fromkeys(SPLITS, 0)
        for batch in _batches(document for piece in pieces for document in documents(piece, self._encoding.reading)):
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
        part = Part(splits)
        record = _record_file(self._encoding, number)
        unfinished = record.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(asdict(part)["splits"]), encoding="utf-8")
        unfinished.replace(record)
        return part

    def _ended(self, tokens: Ids) -> npt.NDArray[np.unsignedinteger]:
        """The ids as they are in the file, the end of text last."""
        result = np.empty(len(tokens) + 1, dtype=np.dtype(self._encoding.dtype).newbyteorder("<"))
        result[:-1] = tokens
        result[-1] = self._end_of_text_id
        return result


_maker: list[_PartMaker] = []


def _start_worker(encoding: Encoding, form: TiktokenForm | None) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to end
    end_with_parent()
    _maker.append(_PartMaker(encoding, form))


def _make_in_worker(number: int, pieces: list[Piece]) -> Part:
    return _maker[0].make(number, pieces)


def _batches(found: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in found:
        batch.append(document)
        size += len(document.text)
        if size >= ENCODED_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
