"""A fleet's ledger in the control bucket: its state, and one object for each clock hour with an instance.

```
controller/<fleet>/ledger/state.json                     the books (`books.Books`), rewritten after changes
controller/<fleet>/ledger/hours/<YYYY-MM-DD>T<HH>.json   the rows for an hour, UTC
```

Nodes cannot access the prefix. An hour's object is derived from the books and can be written any number of times.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from ..records import MAX_TEXT_CHARACTERS, InvalidRecord, controller_prefix, json_object
from .books import Books, Row
from .machines import MARKETS, Charge, Machine

SCHEMA_VERSION = 1
MAX_BYTES = 16 * 1024 * 1024
"""Maximum object size. It is enough for about 30,000 instances, more than a deployment starts in KEPT_SECONDS."""

T = TypeVar("T")


def state_key(fleet: str) -> str:
    """Return the key of a ledger's state."""
    return f"{controller_prefix(fleet)}ledger/state.json"


def hours_prefix(fleet: str) -> str:
    """Return the prefix of the objects of a ledger's hours."""
    return f"{controller_prefix(fleet)}ledger/hours/"


def hour_key(fleet: str, hour: int) -> str:
    """Return the key of a clock hour's object. Keys sort by time."""
    return f"{hours_prefix(fleet)}{datetime.fromtimestamp(hour, UTC):%Y-%m-%dT%H}.json"


def books_to_bytes(books: Books) -> bytes:
    """Return the state object's content."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **dataclasses.asdict(books)}, sort_keys=True).encode()


def books_from_bytes(content: bytes) -> Books:
    """Return the books. Raises InvalidRecord."""
    record = _object(content)
    return Books(
        looked_unix_seconds=_optional(record, "looked_unix_seconds", _number),
        machines=tuple(_machine(item) for item in _list(record, "machines")),
        runs=tuple(_run(item) for item in _list(record, "runs")),
        past=_charges(record, "past"),
        run_seconds={
            str(run): _checked(seconds, "run_seconds") for run, seconds in _mapping(record, "run_seconds").items()
        },
    )


def hour_to_bytes(hour: int, rows: Iterable[Row], now_unix_seconds: float) -> bytes:
    """Return the content of an hour's object."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "hour_unix_seconds": hour,
        "until_unix_seconds": min(now_unix_seconds, hour + 3600.0),
        "machines": [
            {
                "instance_id": row.machine.instance_id,
                "instance_type": row.machine.instance_type,
                "zone": row.machine.zone,
                "market": row.machine.market,
                "launched_unix_seconds": row.machine.launched_unix_seconds,
                "ended_unix_seconds": row.machine.gone_unix_seconds,
                "reclaimed": row.machine.reclaimed,
                "charges": {run: dataclasses.asdict(charge) for run, charge in row.charges.items()},
            }
            for row in rows
        ],
    }
    return json.dumps(document, sort_keys=True).encode()


@dataclasses.dataclass(frozen=True)
class Entry:
    """One machine's charges for one run within a clock hour."""

    hour_unix_seconds: int
    run: str
    instance_id: str
    instance_type: str
    zone: str
    market: str
    charge: Charge


def entries_from_bytes(content: bytes) -> list[Entry]:
    """Return the entries of an hour's object. Raises InvalidRecord."""
    record = _object(content)
    hour = int(_number(record, "hour_unix_seconds"))
    return [
        Entry(
            hour_unix_seconds=hour,
            run=run,
            instance_id=_text(item, "instance_id"),
            instance_type=_text(item, "instance_type"),
            zone=_text(item, "zone"),
            market=_text(item, "market"),
            charge=charge,
        )
        for item in _list(record, "machines")
        for run, charge in _charges(item, "charges").items()
    ]


def _object(content: bytes) -> Mapping[str, Any]:
    value = json_object(content, MAX_BYTES)
    if value.get("schema_version") != SCHEMA_VERSION:
        raise InvalidRecord(f"must be an object with schema_version {SCHEMA_VERSION}")
    return value


def _machine(item: Mapping[str, Any]) -> Machine:
    market = _text(item, "market")
    if market not in MARKETS:
        raise InvalidRecord(f"market: must be one of {', '.join(MARKETS)}")
    return Machine(
        instance_id=_text(item, "instance_id"),
        launched_unix_seconds=_number(item, "launched_unix_seconds"),
        live_unix_seconds=_number(item, "live_unix_seconds"),
        instance_type=_text(item, "instance_type"),
        zone=_text(item, "zone"),
        market=market,  # type: ignore[arg-type]
        gone_unix_seconds=_optional(item, "gone_unix_seconds", _number),
        reclaimed=_flag(item, "reclaimed"),
        is_end_assumed=_flag(item, "is_end_assumed"),
        spot_usd={_hour(hour): _checked(usd, "spot_usd") for hour, usd in _mapping(item, "spot_usd").items()},
        settled_hours=int(_number(item, "settled_hours")),
        settled=_charges(item, "settled"),
    )


def _run(item: Any) -> tuple[float, str]:
    if not isinstance(item, list) or len(item) != 2 or not isinstance(item[1], str):
        raise InvalidRecord("runs: must contain pairs of a time and a name")
    return _checked(item[0], "runs"), item[1]


def _charges(record: Mapping[str, Any], key: str) -> dict[str, Charge]:
    names = [each.name for each in dataclasses.fields(Charge)]
    found = {}
    for run, item in _mapping(record, key).items():
        if not isinstance(item, dict):
            raise InvalidRecord(f"{key}: must contain objects")
        found[str(run)] = Charge(**{name: _number(item, name) for name in names})
    return found


def _hour(key: str) -> int:
    if not key.isascii() or not key.isdecimal():
        raise InvalidRecord("spot_usd: keys must be hour numbers")
    return int(key)


def _number(record: Mapping[str, Any], key: str) -> float:
    return _checked(record.get(key), key)


def _checked(value: Any, key: str) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 <= value < 1e12:
        raise InvalidRecord(f"{key}: must be a number from 0 to 1e12")
    return float(value)


def _optional(record: Mapping[str, Any], key: str, read: Callable[[Mapping[str, Any], str], T]) -> T | None:
    return None if record.get(key) is None else read(record, key)


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARACTERS:
        raise InvalidRecord(f"{key}: must be a string of at most {MAX_TEXT_CHARACTERS} characters")
    return value


def _flag(record: Mapping[str, Any], key: str) -> bool:
    value = record.get(key)
    if not isinstance(value, bool):
        raise InvalidRecord(f"{key}: must be true or false")
    return value


def _list(record: Mapping[str, Any], key: str) -> list[Any]:
    value = record.get(key)
    if not isinstance(value, list) or (key == "machines" and not all(isinstance(item, dict) for item in value)):
        raise InvalidRecord(f"{key}: must be a list")
    return value


def _mapping(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    if not isinstance(value, dict):
        raise InvalidRecord(f"{key}: must be an object")
    return value
