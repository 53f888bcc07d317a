"""Values that ranks exchange are equal after the transfer, and cannot contain code."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training import errors
from training.checkpoint.manifest import LogEntry
from training.checkpoint.save.local_tier import LastGang
from training.process.messages import decode, encode

ENTRY = LogEntry(sequence=3, generation=1, writer="w", unix_seconds=1.5, kind="checkpoint", step=7)
KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    KEYS | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_values_are_equal_after_the_transfer(value: Any) -> None:
    received = decode(encode(value))
    assert received == value and repr(received) == repr(value)


def test_records_numbers_and_nan_are_equal_after_the_transfer() -> None:
    value = [(ENTRY, None), {"a": LastGang(1, -1)}, math.inf, "\ud800"]
    assert decode(encode(value)) == value
    assert math.isnan(decode(encode(math.nan)))
    received = decode(encode((np.float32(1.5), np.int64(2))))
    assert received == (1.5, 2) and [type(each) for each in received] == [float, int]


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigurationError(["a", "b"]),
        errors.TokenizeError(["a"]),
        errors.NonFiniteLossError(3, 1.0, math.inf, "in layer"),
        errors.SupersededError("a later generation"),
        errors.OutOfMemoryError("a"),
    ],
)
def test_errors_keep_their_class_and_message(error: Exception) -> None:
    received = decode(encode(error))
    assert type(received) is type(error) and str(received) == str(error)


def test_a_subclass_outside_the_errors_module_becomes_its_base_class() -> None:
    class OwnError(errors.StoreError):
        pass

    received = decode(encode(OwnError("a")))
    assert type(received) is errors.StoreError and str(received) == "a"


def test_an_error_of_other_code_becomes_a_peer_error() -> None:
    received = decode(encode(KeyError("x")))
    assert type(received) is errors.PeerError and str(received) == "KeyError: 'x'"


@pytest.mark.parametrize("value", [object(), {1, 2}, print, b"x", json.JSONDecoder()])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="cannot exchange"):
        encode(value)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"{}",
        b"[" * 100_000,
        pickle.dumps([1]),
        b'{"error": "ABC", "arguments": []}',
        b'{"error": "__builtins__", "arguments": []}',
        b'{"error": "NonFiniteLossError", "arguments": []}',
        b'{"model": "os:system", "value": "ls"}',
        b'{"model": "training.errors:PeerError", "value": "{}"}',
        b'{"model": "training.process.messages:importlib", "value": "{}"}',
        b'{"model": "training.checkpoint.manifest:LogEntry", "value": "{}"}',
        b'{"named tuple": "subprocess:Popen", "values": ["ls"]}',
        b'{"named tuple": "training.checkpoint.manifest:LogEntry", "values": []}',
        b'{"dict": [[[1], 2]]}',
    ],
)
def test_a_message_cannot_name_other_code(message: bytes) -> None:
    with pytest.raises(errors.PeerError, match="a rank sent an invalid message"):
        decode(message)


def test_no_module_exchanges_pickles_between_ranks() -> None:
    calls = ("gather_object", "broadcast_object", "scatter_object", "send_object", "recv_object")
    for path in Path(errors.__file__).parent.rglob("*.py"):
        assert not any(call in path.read_text() for call in calls), path
