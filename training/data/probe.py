"""Computes numbers that identify a user-supplied dataset, so that a resumed run detects different data of equal length.

Reading all samples would take as long as an epoch, so only a few are read. Floating-point numbers and pixels may differ
in their last digits between processors and decoder versions, so probes are compared with a tolerance.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

PROBED_SAMPLES = 4
"""Number of samples to read at every start. Each is read twice."""
PERIOD = 97
"""The weights in the sum repeat after this number of elements. With weights, a permutation changes the sum."""


def probe(samples: int, read: Callable[[int], Any]) -> list[float | None]:
    """Return two numbers for each of a few evenly spaced samples, including the first and the last.

    Args:
        samples: number of samples.
        read: function that returns a sample.

    Returns:
        For each sample, a checksum of its integers and text, and a weighted sum of its floats and pixels. Both are None
        for a sample that cannot be read, or that differs when it is read again.
    """
    numbers = sorted({index * (samples - 1) // (PROBED_SAMPLES - 1) for index in range(PROBED_SAMPLES)})
    return [value for number in numbers for value in _probe_sample(number, read)]


def _probe_sample(number: int, read: Callable[[int], Any]) -> tuple[float | None, float | None]:
    try:
        first, second = _Summary(read(number)), _Summary(read(number))
    # Do not report the exception here: it is raised again when the sample is loaded for a batch.
    except Exception:  # noqa: BLE001
        return None, None
    same = (first.checksum, first.sum) == (second.checksum, second.sum)
    return (float(first.checksum), first.sum) if same else (None, None)


class _Summary:
    """Computes a sample's checksum and weighted sum. A sample may nest tensors, arrays, numbers and text."""

    def __init__(self, sample: Any) -> None:
        self.checksum, self.sum, self._weight = 0, 0.0, 1.0
        self._add(sample)

    def _add(self, value: Any) -> None:
        if isinstance(value, Mapping):
            for key in sorted(value, key=str):
                self._add_exact(str(key))
                self._add(value[key])
        elif isinstance(value, (list, tuple)):
            for each in value:
                self._add(each)
        elif isinstance(value, Tensor):
            host = value.detach().cpu()
            self._add_array(host.float().numpy() if host.is_floating_point() else host.numpy())
        elif isinstance(value, (float, np.ndarray, np.generic)):
            self._add_array(np.asarray(value))
        elif isinstance(value, (str, bytes, int)) or value is None:
            self._add_exact(value)
        else:
            self._add_exact(type(value).__qualname__)

    def _add_exact(self, value: object) -> None:
        self.checksum = zlib.crc32(value if isinstance(value, bytes) else repr(value).encode(), self.checksum)

    def _add_array(self, array: np.ndarray[Any, Any]) -> None:
        self._add_exact(str(array.shape))
        if array.dtype.kind not in "fc" and array.dtype != np.uint8:
            self._add_exact(array.tobytes())
            return
        flat = np.nan_to_num(np.abs(array.reshape(-1)).astype(np.float64), posinf=0.0)
        # Add absolute values, because a sum near zero would not tolerate rounding. Negative numbers have double weight.
        weights = 1.0 + np.arange(flat.size) % PERIOD / PERIOD
        self.sum += self._weight * float(flat @ (weights * (1 + (array.reshape(-1).real < 0))))
        self._weight += 1.0 / PERIOD
