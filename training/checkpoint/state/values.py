"""Encodes Python values as JSON and decodes them to equal values of the same types.

JSON does not have tuples, sets, bytes, tensors, infinities, or keys other than strings. Such values become objects with
the key ``$``, which names their type. A value of any other type is rejected, and the message contains its path. A
silent change, such as ``MultiStepLR``'s integer milestones becoming strings, is worse than an error
(https://github.com/Lightning-AI/pytorch-lightning/issues/10093, 2021-10).
"""

from __future__ import annotations

import base64
import math
import struct
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from training.errors import ConfigurationError, CorruptCheckpointError

TAG = "$"
MAX_DEPTH = 40
"""Maximum nesting level. A JSON parser accepts 200 levels, and each level of a value uses up to four."""
MAX_BYTES = 64 * 1024 * 1024
"""Maximum size in bytes of a tensor in a manifest, because the manifest is read before any tensor."""
SUPPORTED = "None, bool, int, float, str, bytes, list, tuple, set, dict, tensors and NumPy arrays"
_DOUBLE = struct.Struct("<d")
_ZEROS = (_DOUBLE.pack(0.0), _DOUBLE.pack(-0.0))
_MAPPINGS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered_dict": OrderedDict, "counter": Counter}
_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
}
_SEQUENCE_NAMES: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset", torch.Size: "size"}

PutTensor = Callable[[str, Tensor], str]
TakeTensor = Callable[[str], Tensor]


def encode(value: Any, path: str, put_tensor: PutTensor | None = None) -> Any:
    """Return a JSON value that :func:`decode` accepts.

    Args:
        value: value of the supported types, in any nesting.
        path: name of the value, for messages.
        put_tensor: function that stores a tensor elsewhere, under a name made from its path, and returns that name;
            None: tensors' bytes are part of the JSON.

    Raises:
        ConfigurationError: The value, or a value in it, cannot be saved; the message contains the path.
    """
    return _Encoder(put_tensor).encode(value, path, 0)


def decode(encoded: Any, take_tensor: TakeTensor | None = None) -> Any:
    """Decode a value. Its tensors are on the host.

    Args:
        encoded: value returned by :func:`encode`.
        take_tensor: function that returns the tensor for a name, if ``put_tensor`` was used.

    Raises:
        CorruptCheckpointError: Another version or another program encoded the value.
    """
    try:
        return _decode(encoded, take_tensor)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CorruptCheckpointError(f"a value in the manifest cannot be decoded ({error!r})") from error


def encode_mapping(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Encode a mapping with keys of any supported type as a JSON object."""
    encoded: dict[str, Any] = encode(values, path)
    return encoded


class _Encoder:
    def __init__(self, put_tensor: PutTensor | None) -> None:
        self._put_tensor = put_tensor

    def encode(self, value: Any, path: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise _refusal(path, f"is nested more than {MAX_DEPTH} levels deep, or contains itself", "flatten it")
        kind = type(value)
        if value is None or kind is bool or kind is int:
            return value
        if kind is float:
            return _float(value)
        if kind is str:
            return value if _is_plain(value) else {TAG: "str", "value": _text(value.encode("utf-8", "surrogatepass"))}
        if kind is list:
            return [self.encode(item, f"{path}[{number}]", depth + 1) for number, item in enumerate(value)]
        if kind in _SEQUENCE_NAMES:
            items = [self.encode(item, f"{path}[{number}]", depth + 1) for number, item in enumerate(value)]
            return {TAG: _SEQUENCE_NAMES[kind], "value": items}
        if kind in _MAPPINGS.values():
            return self._mapping(value, path, depth)
        if kind is bytes or kind is bytearray:
            return {TAG: kind.__name__, "value": _text(value)}
        if kind is complex:
            return {TAG: "complex", "value": [self.encode(part, path, depth) for part in (value.real, value.imag)]}
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if kind is np.ndarray or isinstance(value, np.generic):
            return _array(value, path)
        if kind is torch.dtype or kind is torch.device:
            return {TAG: kind.__name__, "value": str(value).removeprefix("torch.")}
        raise _refusal(path, f"is a {_name(kind)}, which cannot be saved", f"convert it; supported: {SUPPORTED}")

    def _mapping(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        names = [name for name, kind in _MAPPINGS.items() if type(value) is kind]
        encoded = [
            (self.encode(key, f"{path}: key {key!r}", depth + 1), self.encode(item, f"{path}[{key!r}]", depth + 1))
            for key, item in value.items()
        ]
        if names == ["dict"] and TAG not in value and all(type(key) is str for key, _ in encoded):
            return dict(encoded)
        return {TAG: names[0], "value": [list(pair) for pair in encoded]}

    def _tensor(self, value: Tensor, path: str) -> Any:
        if value.requires_grad or isinstance(value, torch.nn.Parameter):
            kind = "tensor with requires_grad" if value.requires_grad else "Parameter"
            raise _refusal(path, f"is a {kind}", "pass tensor.detach()")
        problem = tensor_problem(value)
        if problem is not None:
            raise _refusal(path, problem, "convert it to a plain tensor")
        if self._put_tensor is not None:
            return {TAG: "stored_tensor", "value": self._put_tensor(path, value)}
        if value.numel() * value.element_size() > MAX_BYTES:
            raise _refusal(path, f"is a tensor larger than {MAX_BYTES} bytes", "make it a model buffer")
        plain = value.cpu().contiguous()
        content = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
        dtype = str(value.dtype).removeprefix("torch.")
        return {TAG: "tensor", "value": _text(content), "dtype": dtype, "shape": list(value.shape)}


def tensor_problem(tensor: Tensor) -> str | None:
    """Return the reason why a tensor's bytes cannot be saved and restored; None if they can."""
    if is_lazy(tensor):
        return "has no shape yet; run a forward pass first"
    plain = tensor.data if isinstance(tensor, torch.nn.Parameter) else tensor
    if type(plain) is not Tensor:
        return f"is a {_name(type(plain))}, not a plain tensor"
    if tensor.layout != torch.strided:
        return f"is a tensor with layout {tensor.layout}, not a dense tensor"
    if tensor.is_quantized:
        return f"is a quantized tensor ({tensor.dtype})"
    if tensor.device.type == "meta":
        return "is on the meta device and has no content"
    if tensor.is_conj() or tensor.is_neg():
        return "is a lazily conjugated or negated view"
    return _copy_problem(tensor.dtype)


@cache
def _copy_problem(dtype: torch.dtype) -> str | None:
    try:
        probe = torch.zeros(dtype.itemsize, dtype=torch.uint8).view(dtype)
        torch.empty_like(probe).copy_(probe)
    except (RuntimeError, NotImplementedError) as error:
        return f"has the type {dtype}, which this torch version cannot copy ({str(error).splitlines()[0]})"
    return None


def _float(value: float) -> Any:
    if not math.isfinite(value):
        return {TAG: "float", "value": str(value)}
    bits = _DOUBLE.pack(value)
    if abs(value) < sys.float_info.min and bits not in _ZEROS:
        # The trainer's process flushes denormal numbers to zero, and Python would then also print them as zero.
        return {TAG: "float_bits", "value": bits.hex()}
    return value


def _array(value: Any, path: str) -> Any:
    # NumPy reads the name of a type added by another package, such as bfloat16, as plain bytes.
    if value.dtype.hasobject or value.dtype.fields is not None or np.dtype(value.dtype.str) != value.dtype:
        raise _refusal(path, f"is a NumPy value of type {value.dtype}", "use an array of numbers")
    kind = "array" if type(value) is np.ndarray else "numpy_scalar"
    content = _text(np.ascontiguousarray(value).tobytes())
    return {TAG: kind, "value": content, "dtype": value.dtype.str, "shape": list(value.shape)}


def _decode(encoded: Any, take_tensor: TakeTensor | None) -> Any:
    if isinstance(encoded, list):
        return [_decode(item, take_tensor) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if TAG not in encoded:
        return {key: _decode(item, take_tensor) for key, item in encoded.items()}
    kind, value = encoded[TAG], encoded["value"]
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]({_decode(key, None): _decode(item, take_tensor) for key, item in value})
    if kind in _SEQUENCES:
        return _SEQUENCES[kind]([_decode(item, take_tensor) for item in value])
    if kind == "stored_tensor":
        if take_tensor is None:
            raise KeyError(value)
        return take_tensor(value)
    return _LEAVES[kind](encoded)


def _tensor(encoded: Mapping[str, Any]) -> Tensor:
    dtype = getattr(torch, encoded["dtype"])
    content = bytearray(_bytes(encoded))
    flat = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
    return flat.clone().view(dtype).view(encoded["shape"])


def _numpy(encoded: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(_bytes(encoded), dtype=np.dtype(encoded["dtype"])).reshape(encoded["shape"]).copy()


_LEAVES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "float": lambda encoded: float(encoded["value"]),
    "float_bits": lambda encoded: _DOUBLE.unpack(bytes.fromhex(encoded["value"]))[0],
    "str": lambda encoded: _bytes(encoded).decode("utf-8", "surrogatepass"),
    "bytes": lambda encoded: _bytes(encoded),
    "bytearray": lambda encoded: bytearray(_bytes(encoded)),
    "complex": lambda encoded: complex(*(_decode(part, None) for part in encoded["value"])),
    "tensor": _tensor,
    "array": _numpy,
    "numpy_scalar": lambda encoded: _numpy(encoded)[()],
    "dtype": lambda encoded: getattr(torch, encoded["value"]),
    "device": lambda encoded: torch.device(encoded["value"]),
}


def _is_plain(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _text(content: bytes | bytearray) -> str:
    return base64.b64encode(content).decode("ascii")


def _bytes(encoded: Mapping[str, Any]) -> bytes:
    return base64.b64decode(encoded["value"], validate=True)


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _refusal(path: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError([f"{path}: {problem}; {remedy}"])
