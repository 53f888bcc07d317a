"""Divides a token stream into samples: windows over the concatenated documents, or padded documents.

A row contains a sample's sequence_length + 1 tokens. The inputs are all tokens except the last, and the targets are all
tokens except the first.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from training.data.dataset import Dataset, SplitName, TokenSplit
from training.data.device_copy import Rows

NO_TARGET = -100
"""Target that pads a row after the end of its document. torch's cross-entropy ignores it by default.
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html (2026-11), ``ignore_index``."""

Numbers = npt.NDArray[np.int64]


class Samples(Protocol):
    """Numbered samples of a split.

    Attributes:
        count: number of samples.
        sequence_length: number of inputs per sample.
        has_padding: True if rows may contain NO_TARGET.
    """

    count: int
    sequence_length: int
    has_padding: bool

    def fill(self, numbers: Numbers, rows: Rows) -> None:
        """Write samples into rows. Shapes: numbers [n] int64; rows [n, sequence_length + 1] int64."""

    def targets(self, numbers: Numbers) -> int:
        """Return the total number of targets in these samples. A sample without padding has sequence_length targets."""


class WindowSamples:
    """Windows of ``sequence_length`` tokens over a split's concatenated documents, without padding.

    Args:
        tokens: number of tokens in the split. Each window uses one more token than its inputs: the last target.
        sequence_length: number of inputs per window.
    """

    has_padding = False

    def __init__(self, tokens: int, sequence_length: int) -> None:
        self.sequence_length = sequence_length
        self.count = max(0, (tokens - 1) // sequence_length)

    def targets(self, numbers: Numbers) -> int:
        """Return the number of targets: every token in a window except the first."""
        return len(numbers) * self.sequence_length


class Windows(WindowSamples):
    """Windows over a local split."""

    def __init__(self, split: TokenSplit, sequence_length: int) -> None:
        super().__init__(split.tokens, sequence_length)
        self._split = split

    def fill(self, numbers: Numbers, rows: Rows) -> None:
        """Copy windows. A window's last target is also the next window's first input."""
        self._split.read_rows(numbers * self.sequence_length, rows)


class Documents:
    """One document per sample, padded at the end. A document that is too long becomes several samples.

    The constructor reads all tokens of the split, at about the disk's speed, to find the ends of documents.

    Args:
        split: the split's tokens.
        sequence_length: number of inputs per sample.
        end_of_text_id: last token in each document.
    """

    has_padding = True

    def __init__(self, split: TokenSplit, sequence_length: int, end_of_text_id: int) -> None:
        self._split = split
        self.sequence_length = sequence_length
        ends = split.positions_of(end_of_text_id) + 1
        if not ends.size or ends[-1] != split.tokens:
            ends = np.append(ends, split.tokens)
        starts = np.concatenate([[0], ends[:-1]])
        # Like windows, a document's pieces overlap by one token, so n tokens have n - 1 targets.
        pieces = np.maximum(ends - starts - 1, 0) // sequence_length + ((ends - starts - 1) % sequence_length > 0)
        place = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        self._starts = np.repeat(starts, pieces) + place * sequence_length
        self._lengths = np.minimum(np.repeat(ends, pieces) - self._starts, sequence_length + 1)
        self.count = len(self._starts)

    def fill(self, numbers: Numbers, rows: Rows) -> None:
        """Copy each document, and pad its row with NO_TARGET."""
        for row, start, length in zip(
            rows, self._starts[numbers].tolist(), self._lengths[numbers].tolist(), strict=True
        ):
            self._split.read_rows(np.array([start]), row[None, :length])
            row[length:] = NO_TARGET

    def targets(self, numbers: Numbers) -> int:
        """Return the number of targets: every token in a document except the first."""
        return int(self._lengths[numbers].sum()) - len(numbers)


def samples_of(
    dataset: Dataset, split: SplitName, sequence_length: int, documents: Literal["joined", "apart"]
) -> Samples:
    """Return the samples of a split: windows over joined documents, or documents that are kept apart."""
    tokens = dataset.split(split)
    if documents == "joined":
        return Windows(tokens, sequence_length)
    return Documents(tokens, sequence_length, dataset.record.end_of_text_id)
