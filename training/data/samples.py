"""What a sample of a token stream is: a window of the joined documents, or one document, padded.

A row is a sample's tokens, one more than the context; its inputs are all but the last, its targets all but the first.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from training.data.dataset import TokenSplit
from training.data.lane import Rows

NO_TARGET = -100
"""Fills a row behind the end of its document: what torch's cross-entropy leaves out unless told otherwise.
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html (2026-11), ``ignore_index``."""

Numbers = npt.NDArray[np.int64]


class Samples(Protocol):
    """Numbered samples of a split.

    Attributes:
        count: how many there are.
        context: inputs of each.
        has_padding: whether rows may hold NO_TARGET.
    """

    count: int
    context: int
    has_padding: bool

    def fill(self, numbers: Numbers, rows: Rows) -> None:
        """Write these samples into rows. Shapes: numbers [n] int64; rows [n, context + 1] int64."""

    def targets(self, numbers: Numbers) -> int:
        """How many targets these samples have together; always context each where there is no padding."""


class Windows:
    """The split's documents, joined and cut every ``context`` tokens: nothing is padded, nothing is wasted."""

    has_padding = False

    def __init__(self, split: TokenSplit, context: int) -> None:
        self._split = split
        self.context = context
        self.count = split.sequences(context)

    def fill(self, numbers: Numbers, rows: Rows) -> None:
        """Copy windows; neighbours share the token that is the last target of one and the first input of the other."""
        self._split.read_rows(numbers * self.context, rows)

    def targets(self, numbers: Numbers) -> int:
        """Every token of a window but its first is a target."""
        return len(numbers) * self.context


class Documents:
    """One document a sample, padded behind its end; a longer one is several samples.

    The search for the ends of documents reads the split once, at about the speed of the disk.

    Args:
        split: the tokens.
        context: inputs of a sample.
        end_of_text_id: the last token of each document.
    """

    has_padding = True

    def __init__(self, split: TokenSplit, context: int, end_of_text_id: int) -> None:
        self._split = split
        self.context = context
        ends = split.places_of(end_of_text_id) + 1
        if not ends.size or ends[-1] != split.tokens:
            ends = np.append(ends, split.tokens)
        starts = np.concatenate([[0], ends[:-1]])
        # The pieces of a document overlap by a token, as windows do; so n tokens have n - 1 targets.
        pieces = np.maximum(ends - starts - 1, 0) // context + ((ends - starts - 1) % context > 0)
        place = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        self._starts = np.repeat(starts, pieces) + place * context
        self._lengths = np.minimum(np.repeat(ends, pieces) - self._starts, context + 1)
        self.count = len(self._starts)

    def fill(self, numbers: Numbers, rows: Rows) -> None:
        """Copy each document, and NO_TARGET behind it."""
        for row, start, length in zip(
            rows, self._starts[numbers].tolist(), self._lengths[numbers].tolist(), strict=True
        ):
            self._split.read_rows(np.array([start]), row[None, :length])
            row[length:] = NO_TARGET

    def targets(self, numbers: Numbers) -> int:
        """Every token of a document but its first is a target."""
        return int(self._lengths[numbers].sum()) - len(numbers)
