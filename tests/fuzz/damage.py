"""Corrupts valid input: bytes, JSON values, and lines of YAML."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

DEEP = 100_000
HOSTILE_JSON = (
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "-1",
    "0",
    "1.5",
    "9" * 400,
    "9" * 5000,
    "true",
    "null",
    '""',
    '"\\u0000"',
    '"\\ud800"',
    '"../../etc/passwd"',
    '"' + "x" * 100_000 + '"',
    "[]",
    "{}",
    "[" * DEEP + "]" * DEEP,
    '{"a":' * 5000 + "1" + "}" * 5000,
    "[" + "0," * 20_000 + "0]",
)
HOSTILE_YAML = (
    "2026-02-30",
    "!!int x",
    "!!binary x",
    "!!python/object/apply:os.system [id]",
    "&a [*a, *a]",
    "<<: *a",
    "? [1, 2]",
    "1:99:99",
    ".inf",
    "0x",
    "'" * 3,
    "\x00",
    "\x7f\x9b",
    "\ud800",
    "\u2028",
    "{" * 2000,
    "[" * 50_000,
    "- " * 20_000,
    "[" + "a," * 200_000 + "a]",
    "9" * 5000,
    "1e999",
    "|+\n   x",
    "%YAML 9.9",
    "---",
    "\t",
)
HOSTILE_BYTES = (b"", b"\xff", b"\x00", b"\xfe\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r\n", b"\n\n", b"{", b'"')


def damaged_bytes(random: Random, content: bytes) -> bytes:
    """Flip, remove, repeat, insert or truncate bytes."""
    result = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 5))):
        place = random.randrange(len(result) + 1)
        match random.randrange(6):
            case 0 if result:
                result[place % len(result)] = random.randrange(256)
            case 1:
                del result[place : place + random.randrange(1, 20)]
            case 2:
                result[place:place] = result[place : place + random.randrange(1, 200)] * random.choice((1, 2, 50))
            case 3:
                result[place:place] = random.choice(HOSTILE_BYTES)
            case 4:
                del result[place:]
            case _:
                result[place:place] = random.randbytes(random.randrange(1, 9))
    return bytes(result)


def damaged_json(random: Random, content: bytes) -> bytes:
    """Replace, remove, repeat or add a value of a JSON document, or damage its bytes."""
    if random.random() < 0.25:
        return damaged_bytes(random, content)
    document = json.loads(content)
    marks = [f"\x01{number}\x01" for number in range(random.choice((1, 1, 2, 3)))]
    for mark in marks:
        document = _with(document, random, lambda _, mark=mark: mark)
    text = json.dumps(document)
    for mark in marks:
        text = text.replace(json.dumps(mark), random.choice(HOSTILE_JSON), 1)
    return text.encode()


def _with(document: Any, random: Random, change: Callable[[Any], Any]) -> Any:
    """Return a copy in which one value, at any depth, is changed, missing or new."""
    if not isinstance(document, (dict, list)) or not document or random.random() < 0.15:
        return change(document)
    changed: Any = dict(document) if isinstance(document, dict) else list(document)
    key = random.choice(list(changed)) if isinstance(changed, dict) else random.randrange(len(changed))
    match random.randrange(8):
        case 0:
            del changed[key]
        case 1 if isinstance(changed, dict):
            changed[f"{key}{random.randrange(9)}"] = change(None)
        case 1:
            changed.append(change(None))
        case _:
            changed[key] = _with(changed[key], random, change)
    return changed


def damaged_yaml(random: Random, content: bytes) -> bytes:
    """Replace a value, repeat, move or indent lines, or damage the bytes."""
    if random.random() < 0.25:
        return damaged_bytes(random, content)
    lines = content.decode().split("\n")
    for _ in range(random.choice((1, 1, 2))):
        place = random.randrange(len(lines))
        key, colon, _ = lines[place].partition(":")
        hostile = random.choice(HOSTILE_YAML)
        match random.randrange(6):
            case 0:
                lines.insert(place, lines[random.randrange(len(lines))])
            case 1:
                lines[place] = " " * random.randrange(9) + lines[place].lstrip()
            case 2:
                del lines[place]
            case 3:
                lines.insert(place, hostile)
            case _:
                lines[place] = f"{key}{colon} {hostile}"
        lines = lines or [""]
    return "\n".join(lines).encode(errors="surrogatepass")


def damaged_response(random: Random, content: bytes) -> bytes:
    """Damage an HTTP response, or replace a header."""
    head, blank, body = content.partition(b"\r\n\r\n")
    header = random.choice(
        (
            b"Content-Length: " + random.choice((b"-1", b"0", b"99999999999999999999", b"x", b"5, 6")),
            b"Transfer-Encoding: chunked",
            b"Content-Encoding: gzip",
            b"Location: file:///etc/passwd",
            b"X: " + b"a" * 70_000,
            b"X: a\r\n" * 300 + b"Y: b",
        )
    )
    if random.random() < 0.5:
        return head + b"\r\n" + header + blank + damaged_bytes(random, body)
    return damaged_bytes(random, content)
