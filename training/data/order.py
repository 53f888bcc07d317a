"""The sample order: a keyed permutation with random access.

No shuffled list is kept in memory. The seed and the number of consumed samples determine a step's samples for any
number of processes, so a checkpoint stores only one integer.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.uint64]

ROUNDS = 6
"""Feistel rounds. Four pseudorandom rounds make a permutation indistinguishable from a random permutation (Luby
and Rackoff 1988, https://doi.org/10.1137/0217022). Two more rounds are used because this round function is only a
mixer."""
BLOCK = 4096
"""Number of positions that are computed together."""


def permuted(indices: Indices, size: int, key: bytes) -> Indices:
    """Map each index below ``size`` to its position in the permutation selected by ``key``.

    A balanced Feistel network permutes the smallest power of four that is at least ``size``. A result of ``size`` or
    more is permuted again until it is below ``size`` (cycle walking); this takes fewer than four permutations on
    average.
    """
    assert size > 0, "size must be positive"
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    digest = hashlib.blake2b(key, digest_size=8 * ROUNDS).digest()
    round_keys = np.frombuffer(digest, dtype="<u8")
    result = _feistel(indices.astype(np.uint64), half_bits, round_keys)
    outside = np.flatnonzero(result >= size)
    while outside.size:
        result[outside] = _feistel(result[outside], half_bits, round_keys)
        outside = outside[result[outside] >= size]
    return result


def _feistel(values: Indices, half_bits: int, round_keys: npt.NDArray[np.uint64]) -> Indices:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for round_key in round_keys:
        left, right = right, left ^ (_mix(right ^ round_key) & mask)
    return (left << shift) | right


def _mix(values: Indices) -> Indices:
    """SplitMix64's finalizer: every input bit affects every output bit.

    Source: https://doi.org/10.1145/2714064.2660195 (Steele, Lea, Flood 2014), constants from Stafford's variant 13.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def sample_order(position: int, count: int, samples: int, seed: int) -> Indices:
    """Return the samples at global positions ``position`` to ``position + count``.

    Args:
        position: number of samples that the run has already consumed.
        count: number of samples to return.
        samples: number of samples in the dataset; each epoch contains each sample once, in a different order.
        seed: the run's seed.

    Shapes: result [count] uint64, each below ``samples``.
    """
    result = np.empty(count, dtype=np.uint64)
    done = 0
    while done < count:
        epoch, place = divmod(position + done, samples)
        take = min(count - done, samples - place)
        places = np.arange(place, place + take, dtype=np.uint64)
        result[done : done + take] = permuted(places, samples, f"{seed}/{epoch}".encode())
        done += take
    return result


class Order(Protocol):
    """The order in which a run consumes samples.

    Attributes:
        samples: number of samples per epoch.
    """

    samples: int

    def at(self, position: int, count: int) -> npt.NDArray[np.int64]:
        """Return the samples at positions ``position`` to ``position + count``. Shapes: result [count] int64."""


class SampleOrder:
    """A run's shuffled order, computed in blocks because each call to :func:`sample_order` has a high fixed cost.

    Args:
        samples: number of samples in the dataset.
        seed: the run's seed.
    """

    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self._seed = seed
        self._number = -1
        self._block: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def at(self, position: int, count: int) -> npt.NDArray[np.int64]:
        """Return the samples at positions ``position`` to ``position + count``. Shapes: result [count] int64."""
        pieces = []
        end = position + count
        while position < end:
            number, place = divmod(position, BLOCK)
            if number != self._number:
                block = sample_order(number * BLOCK, BLOCK, self.samples, self._seed)
                self._number, self._block = number, block.astype(np.int64)
            piece = self._block[place : place + end - position]
            pieces.append(piece)
            position += len(piece)
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, dtype=np.int64), *pieces])
