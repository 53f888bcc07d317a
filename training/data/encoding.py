"""The byte-level BPE tokenizer: training it, and encoding documents with it in several processes.

Runs in worker processes too, so it imports nothing heavy.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from training.data.text import Document, TextFile, documents
from training.errors import TokenizeError

END_OF_TEXT = "<|endoftext|>"
SMALLEST_VOCABULARY = 257
"""One id for each byte, and the end of a document."""
BATCH_BYTES = 1 << 20
"""Text that a worker gets at a time."""


@dataclass(frozen=True)
class EncodedDocument:
    """Token ids of a document, the end of text last. Shapes: tokens [tokens] uint32."""

    name: str
    text_bytes: int
    is_validation: bool
    tokens: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Splitting:
    """How documents are made and divided.

    Attributes:
        document_bytes: length at which files are cut.
        validation_below: documents whose place is below this are validation.
    """

    document_bytes: int
    validation_below: float

    def is_validation(self, document: Document) -> bool:
        """Whether a document is held out."""
        return document.place() < self.validation_below


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> Tokenizer:
    """Train byte-level BPE: any text can be encoded, and decoding gives it back byte for byte.

    Raises:
        TokenizeError: the text has too few different pairs for so many ids.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    reached = tokenizer.get_vocab_size()
    if reached < vocabulary_size:
        raise TokenizeError(
            [
                f"--vocabulary-size: {vocabulary_size} is more than this text supports ({reached}); lower it, or give "
                "more text"
            ]
        )
    return tokenizer


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """Id of the token that ends each document."""
    token_id = tokenizer.token_to_id(END_OF_TEXT)
    assert token_id is not None, "train_tokenizer makes it the first token"
    return token_id


def encode_files(
    tokenizer_file: Path, files: list[TextFile], splitting: Splitting, workers: int
) -> Iterator[tuple[int, list[EncodedDocument]]]:
    """Encode all files in order, in ``workers`` processes; yields the bytes of text done since, and the documents."""
    batches = list(_batches(files))
    if workers == 1 or len(batches) == 1:
        encoder = _Encoder(tokenizer_file, splitting)
        for batch in batches:
            yield sum(file.used_bytes for file in batch), encoder.encode(batch)
        return
    # Not by fork: the tokenizer's own threads, which training it has started, do not survive one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(workers, len(batches)), context, initializer=_start_worker, initargs=(tokenizer_file, splitting)
    ) as pool:
        for batch, encoded in zip(batches, pool.map(_encode_in_worker, batches), strict=True):
            yield sum(file.used_bytes for file in batch), encoded


class _Encoder:
    def __init__(self, tokenizer_file: Path, splitting: Splitting) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        # Text that happens to spell the end-of-text token is text.
        self._tokenizer.encode_special_tokens = True
        self._end_of_text_id = np.uint32(end_of_text_id(self._tokenizer))
        self._splitting = splitting

    def encode(self, files: list[TextFile]) -> list[EncodedDocument]:
        pieces = [document for file in files for document in documents(file, self._splitting.document_bytes)]
        encodings = self._tokenizer.encode_batch_fast([piece.text for piece in pieces], add_special_tokens=False)
        return [
            EncodedDocument(
                piece.name,
                len(piece.text.encode()),
                self._splitting.is_validation(piece),
                np.append(np.array(encoding.ids, dtype=np.uint32), self._end_of_text_id),
            )
            for piece, encoding in zip(pieces, encodings, strict=True)
        ]


_worker_encoder: list[_Encoder] = []


def _start_worker(tokenizer_file: Path, splitting: Splitting) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_encoder.append(_Encoder(tokenizer_file, splitting))


def _encode_in_worker(files: list[TextFile]) -> list[EncodedDocument]:
    return _worker_encoder[0].encode(files)


def _batches(files: list[TextFile]) -> Iterator[list[TextFile]]:
    batch: list[TextFile] = []
    size = 0
    for file in files:
        batch.append(file)
        size += file.used_bytes
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
