"""JSON encoding of the values that ranks exchange. It replaces pickle, which executes code that a peer sends.

The supported values are JSON values, tuples, dicts with keys of any supported type, NumPy numbers, errors, and the
training package's pydantic models and named tuples. An error from outside the package arrives as a PeerError with the
same message.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np
from pydantic import BaseModel

from training import errors
from training.errors import PeerError, TrainingError

PACKAGE = "training."
TUPLE, MAPPING, MODEL, NAMED_TUPLE, ERROR = "tuple", "dict", "model", "named tuple", "error"


def encode(value: Any) -> bytes:
    """Return the message for a value.

    Raises:
        TypeError: The value has an unsupported type.
    """
    return json.dumps(_plain(value)).encode("utf-8", "surrogatepass")


def decode(message: bytes) -> Any:
    """Return the value in a message.

    Raises:
        PeerError: `encode` did not create the message.
    """
    try:
        return _value(json.loads(message.decode("utf-8", "surrogatepass")))
    except (ValueError, TypeError, KeyError, AttributeError, ImportError, RecursionError) as error:
        raise PeerError(f"a rank sent an invalid message ({type(error).__name__}: {error})") from error


def _plain(value: Any) -> Any:
    """Return a JSON value. Values other than JSON scalars and lists are objects with their kind as key."""
    match value:
        case np.generic():
            return _plain(value.item())
        case None | bool() | int() | float() | str():
            return value
        case BaseModel():
            return {MODEL: _name(type(value)), "value": value.model_dump_json()}
        case BaseException():
            known = next((each for each in type(value).__mro__ if getattr(errors, each.__name__, None) is each), None)
            if known is not None:
                return {ERROR: known.__name__, "arguments": [_plain(each) for each in value.args]}
            return {ERROR: PeerError.__name__, "arguments": [f"{type(value).__name__}: {value}"]}
        case tuple() if hasattr(value, "_fields"):
            return {NAMED_TUPLE: _name(type(value)), "values": [_plain(each) for each in value]}
        case tuple():
            return {TUPLE: [_plain(each) for each in value]}
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {MAPPING: [[_plain(key), _plain(each)] for key, each in value.items()]}
        case _:
            raise TypeError(f"ranks cannot exchange a {type(value).__name__}")


def _name(kind: type) -> str:
    if not kind.__module__.startswith(PACKAGE):
        raise TypeError(f"ranks cannot exchange a {kind.__module__}.{kind.__qualname__}")
    return f"{kind.__module__}:{kind.__qualname__}"


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    if TUPLE in plain:
        return tuple(_value(each) for each in plain[TUPLE])
    if MAPPING in plain:
        return {_value(key): _value(each) for key, each in plain[MAPPING]}
    if MODEL in plain:
        model = _class(plain[MODEL])
        if not issubclass(model, BaseModel):
            raise TypeError(f"{model} is not a model")
        return model.model_validate_json(plain["value"])
    if NAMED_TUPLE in plain:
        kind = _class(plain[NAMED_TUPLE])
        if not issubclass(kind, tuple):
            raise TypeError(f"{kind} is not a named tuple")
        return kind(*(_value(each) for each in plain["values"]))
    kind = getattr(errors, plain[ERROR])
    if not issubclass(kind, TrainingError):
        raise TypeError(f"{kind} is not an error")
    return kind(*(_value(each) for each in plain["arguments"]))


def _class(name: str) -> Any:
    module, _, qualified = name.partition(":")
    if not module.startswith(PACKAGE):
        raise TypeError(f"{module} is not part of the training package")
    found = getattr(importlib.import_module(module), qualified)
    if not isinstance(found, type) or found.__module__ != module:
        raise TypeError(f"{name} is not a class of its module")
    return found
