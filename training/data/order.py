"""The order of the samples: a keyed permutation that can be asked for any place in it.

Nothing is shuffled in memory and nothing need be saved but one integer: which samples make up a step follows from the
seed and the number of samples consumed, whatever the number of processes.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.uint64]

ROUNDS = 6
"""Feistel rounds. Four make a permutation that cannot be told from random if the round function cannot be (Luby and
Rackoff 1988, https://doi.org/10.1137/0217022); two more because ours is only a mixer."""


BLOCK = 4096
"""Positions worked out together."""


def permuted(indices: Indices, size: int, key: bytes) -> Indices:
    """Map each index below ``size`` to its place in the permutation that ``key`` names.

    A balanced Feistel network permutes the smallest power of four that is not below ``size``; a value outside is
    put through again until it is inside (cycle walking), less than four times on average.
    """
    assert size > 0, "there is no permutation of nothing"
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
    """Finalizer of SplitMix64: every input bit reaches every output bit.

    Source: https://doi.org/10.1145/2714064.2660195 (Steele, Lea, Flood 2014), constants of Stafford's variant 13.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def sample_order(position: int, count: int, samples: int, seed: int) -> Indices:
    """Samples consumed at global positions ``position`` to ``position + count``, epoch after epoch.

    Args:
        position: samples consumed by the whole run before.
        count: how many to name.
        samples: samples in the dataset; every epoch has each of them once, in an order of its own.
        seed: of the run.

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
    """Which samples come when.

    Attributes:
        samples: of an epoch.
    """

    samples: int

    def at(self, position: int, count: int) -> npt.NDArray[np.int64]:
        """Samples consumed at global positions ``position`` to ``position + count``. Shapes: result [count] int64."""


class SampleOrder:
    """The order of a run, worked out a block at a time: :func:`sample_order` costs as much for few as for many.

    Args:
        samples: samples in the dataset.
        seed: of the run.
    """

    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self._seed = seed
        self._number = -1
        self._block: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def at(self, position: int, count: int) -> npt.NDArray[np.int64]:
        """Samples consumed at global positions ``position`` to ``position + count``. Shapes: result [count] int64."""
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
