"""A process's random number generators: torch's generators, Python's `random`, and NumPy's global generator."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from training.errors import ConfigurationError

MERSENNE = "MT19937"


def seed_generators(seed: int) -> None:
    """Seed all of this process's random number generators from one seed, 0 to 2^64 - 1."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])


def seed_random_state(seed: int, rank: int, step: int) -> None:
    """Seed a rank's generators if the checkpoint does not have its RNG state."""
    digest = hashlib.blake2b(f"{seed}/{rank}/{step}".encode(), digest_size=8).digest()
    seed_generators(int.from_bytes(digest, "little") >> 1)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of this rank's random number generators, on the host.

    Shapes: cpu, cuda [bytes] uint8; python [627] int64; numpy [627] int64. The last two numbers of ``python`` and
    ``numpy`` indicate whether a second normal variate is pending, and contain its bits.

    Raises:
        ConfigurationError: NumPy's global generator was replaced with a generator of another kind.
    """
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    _, numbers, pending = random.getstate()
    states["python"] = torch.tensor([*numbers, int(pending is not None), _bits(pending or 0.0)], dtype=torch.int64)
    drawn = np.random.get_state(legacy=False)
    assert isinstance(drawn, dict), "requested above"
    if drawn["bit_generator"] != MERSENNE:
        raise ConfigurationError(
            [
                f"numpy.random: its global generator is {drawn['bit_generator']}; only {MERSENNE} can be saved, so do "
                "not call numpy.random.set_bit_generator"
            ]
        )
    numbers = [*drawn["state"]["key"].tolist(), drawn["state"]["pos"], drawn["has_gauss"], _bits(drawn["gauss"])]
    states["numpy"] = torch.tensor(numbers, dtype=torch.int64)
    return states


def restore_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the states returned by :func:`random_state`."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    if "python" in states:
        *numbers, has_pending, bits = states["python"].tolist()
        random.setstate((random.getstate()[0], tuple(numbers), _float(bits) if has_pending else None))
    if "numpy" in states:
        *keys, position, has_pending, bits = states["numpy"].tolist()
        np.random.set_state((MERSENNE, np.array(keys, dtype=np.uint32), position, has_pending, _float(bits)))


def _bits(number: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
