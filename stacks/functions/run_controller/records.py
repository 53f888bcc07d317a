"""Decodes the objects that the controller reads from the control bucket.

Nodes can write these objects, so their size, nesting and values are limited. An object that violates a rule raises
InvalidRecord with the rule as its message, and the controller continues without the object.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from .causes import Cause
from .deadlines.goals import MAX_DEADLINE_HOURS, VERDICTS, Outlook, Progress
from .places import HOUR, LONGEST_REFUSAL_HOURS, MAX_SCORE, Record
from .policy import LONGEST_WAIT_SECONDS, PHASES, PROBE_WAITS_SECONDS, ControllerState, Outcome, utc
from .spending import Spending

MAX_RECORD_BYTES = 256 * 1024
MAX_TEXT_CHARACTERS = 16384
MAX_MESSAGE_CHARACTERS = 2000
MAX_COUNT = 10**6
LATEST_UNIX_SECONDS = 253402300799.0
"""The end of the year 9999, the last year that Python's dates support."""
MAX_INSTANCES = 10_000
SUBNET_ID = re.compile(r"subnet-[0-9a-z-]{1,40}")
MAX_AMOUNT = 10**12
CLOCK_SECONDS = 3600.0
"""Maximum difference between the clocks of two invocations."""
MAX_PLACES = 1000
INSTANCE_ID = re.compile(r"i-[0-9a-z-]{1,40}")
_OUTCOMES = ("finished", "failed", "bad_configuration")


class InvalidRecord(ValueError):
    """An object is not a valid record for this run."""


def json_object(content: bytes, max_bytes: int = MAX_RECORD_BYTES) -> dict[str, Any]:
    """Parse an object's bytes. Raises InvalidRecord."""
    if len(content) > max_bytes:
        raise InvalidRecord(f"more than {max_bytes} bytes")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"not JSON ({type(error).__name__})") from error
    if not isinstance(value, dict):
        raise InvalidRecord(f"found {type(value).__name__}, expected an object")
    return value


def outcome_of(record: Mapping[str, Any]) -> Outcome:
    """Return a run's outcome. Raises InvalidRecord."""
    message = _text(record, "message") if "message" in record else ""
    outcome = _choice(record, "outcome", _OUTCOMES)
    return Outcome(_text(record, "run_digest"), outcome, message[:MAX_MESSAGE_CHARACTERS])


def progress_of(record: Mapping[str, Any]) -> Progress | None:
    """Return the progress in the first member's report, or None before its first step. Raises InvalidRecord."""
    members = record.get("members")
    if not isinstance(members, list) or not 1 <= len(members) <= MAX_INSTANCES:
        raise InvalidRecord(f"members: must be a list of 1 to {MAX_INSTANCES} instance ids")
    if record.get("step") is None or record.get("steps_total") is None:
        return None
    saved = record.get("checkpoint")
    seconds = record.get("step_seconds")
    reported = _time(record, "unix_seconds", LATEST_UNIX_SECONDS)
    total = _steps(record, "steps_total")
    if reported is None or not total:
        raise InvalidRecord("unix_seconds and steps_total: must be above 0")
    return Progress(
        step=_steps(record, "step"),
        steps_total=total,
        step_seconds=None if seconds is None else _amount(record, "step_seconds"),
        members=len(members),
        checkpoint_step=_steps(saved, "step") if isinstance(saved, dict) else 0,
        unix_seconds=reported,
    )


def _steps(record: Mapping[str, Any], key: str) -> int:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_AMOUNT:
        raise InvalidRecord(f"{key}: must be an integer from 0 to {MAX_AMOUNT}")
    return value


def stop_of(record: Mapping[str, Any]) -> str:
    """Return the reason why a deployment's desired state keeps its run stopped, or "". Raises InvalidRecord."""
    if _choice(record, "state", ("running", "stopped")) == "running":
        return ""
    who = _text(record, "requested_by") if "requested_by" in record else ""
    when = _time(record, "unix_seconds", LATEST_UNIX_SECONDS) if "unix_seconds" in record else None
    reason = f"stopped by {who[:MAX_MESSAGE_CHARACTERS] or 'an operator'}"
    return reason if when is None else f"{reason} at {utc(when)}"


def state_of(record: Mapping[str, Any], now_unix_seconds: float) -> ControllerState:
    """Return the stored state. Missing keys take their defaults, and unknown keys from other versions are ignored.

    Raises:
        InvalidRecord: A value has the wrong type, or the next attempt is later than the controller would ever schedule
            it.
    """
    latest = now_unix_seconds + max(LONGEST_WAIT_SECONDS, *PROBE_WAITS_SECONDS)
    readers: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
        "run_digest": _text,
        "template": _text,
        "phase": lambda record, key: _choice(record, key, PHASES),
        "subnets": _subnets,
        "attempt": _count,
        "had_instances": _flag,
        "since_unix_seconds": lambda record, key: _time(record, key, latest),
        "retry_unix_seconds": lambda record, key: _time(record, key, latest),
        "boot_failures": _count,
        "probes": _count,
        "booting": _instances,
        "excused": _instances,
        "last_failure": _text,
        "cause": _cause,
        "problem": _text,
        "reason": _text,
        "spending": _spending,
        "places": lambda record, key: _places(record, key, now_unix_seconds),
        "in_place": _flag,
        "choice": _text,
        "started_unix_seconds": lambda record, key: _time(record, key, now_unix_seconds + CLOCK_SECONDS),
        "outlook": lambda record, key: _outlook(record, key, now_unix_seconds),
        "scores": _scores,
        "scored_unix_seconds": lambda record, key: _time(record, key, now_unix_seconds + CLOCK_SECONDS),
        "placed_unix_seconds": lambda record, key: _time(record, key, now_unix_seconds + CLOCK_SECONDS),
        "moving_to": _subnet,
    }
    values: dict[str, Any] = {key: read(record, key) for key, read in readers.items() if key in record}
    return ControllerState(**values)


def _spending(record: Mapping[str, Any], key: str) -> Spending | None:
    value = record[key]
    if value is None:
        return None
    needed = [each.name for each in fields(Spending) if each.default is MISSING]
    if not isinstance(value, dict) or not set(needed) <= set(value):
        raise InvalidRecord(f"{key}: must be null or an object with {', '.join(needed)}")
    return Spending(**{each.name: _amount(value, each.name) for each in fields(Spending) if each.name in value})


def _outlook(record: Mapping[str, Any], key: str, now_unix_seconds: float) -> Outlook | None:
    value = record[key]
    if value is None:
        return None
    if not isinstance(value, dict) or not {"deadline_unix_seconds", "work_hours", "remaining_hours"} <= set(value):
        raise InvalidRecord(f"{key}: must be null or an object with a deadline, work_hours and remaining_hours")
    latest = now_unix_seconds + CLOCK_SECONDS

    readers: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
        "deadline_unix_seconds": lambda record, key: _time(record, key, latest + MAX_DEADLINE_HOURS * HOUR) or 0.0,
        "work_hours": _amount,
        "remaining_hours": _signed,
        "step_seconds": _optional,
        "restart_hours": _amount,
        "has_restarted": _flag,
        "expected_usd": _optional,
        "on_demand_nodes": _count,
        "verdict": lambda record, key: _choice(record, key, VERDICTS),
        "reason": _text,
        "restart_since_unix_seconds": lambda record, key: _time(record, key, latest),
        "leaving_since_unix_seconds": lambda record, key: _time(record, key, latest),
        "leaving_subnet": _subnet,
    }
    return Outlook(**{name: read(value, name) for name, read in readers.items() if name in value})


def _subnet(record: Mapping[str, Any], key: str) -> str:
    found = _text(record, key)
    if found and not SUBNET_ID.fullmatch(found):
        raise InvalidRecord(f"{key}: must be empty or a subnet id")
    return found


def _scores(record: Mapping[str, Any], key: str) -> dict[str, int]:
    value = record[key]
    if not isinstance(value, dict) or len(value) > MAX_PLACES or not all(map(SUBNET_ID.fullmatch, value)):
        raise InvalidRecord(f"{key}: must be an object with at most {MAX_PLACES} subnet ids as keys")
    if not all(type(score) is int and 1 <= score <= MAX_SCORE for score in value.values()):
        raise InvalidRecord(f"{key}: must contain integers from 1 to {MAX_SCORE}")
    return dict(value)


def _optional(record: Mapping[str, Any], key: str) -> float | None:
    return None if record[key] is None else _amount(record, key)


def _signed(record: Mapping[str, Any], key: str) -> float:
    value = record[key]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not -MAX_AMOUNT <= value <= MAX_AMOUNT:  # also false for NaN
        raise InvalidRecord(f"{key}: must be a number from -{MAX_AMOUNT} to {MAX_AMOUNT}")
    return float(value)


def _places(record: Mapping[str, Any], key: str, now_unix_seconds: float) -> dict[str, Record]:
    value = record[key]
    if not isinstance(value, dict) or len(value) > MAX_PLACES or not all(map(SUBNET_ID.fullmatch, value)):
        raise InvalidRecord(f"{key}: must be an object with at most {MAX_PLACES} subnet ids as keys")
    return {subnet: _place(each, f"{key}.{subnet}", now_unix_seconds) for subnet, each in value.items()}


def _place(value: Any, where: str, now_unix_seconds: float) -> Record:
    if not isinstance(value, dict):
        raise InvalidRecord(f"{where}: must be an object")
    latest = now_unix_seconds + max(LONGEST_REFUSAL_HOURS.values()) * HOUR
    readers = {
        "available_hours": _amount,
        "unavailable_hours": _amount,
        "run_hours": _amount,
        "interruptions": _amount,
        "looked_unix_seconds": lambda record, key: _time(record, key, latest),
        "refusals": _count,
        "refused_until_unix_seconds": lambda record, key: _time(record, key, latest) or 0.0,
        "cause": _cause,
    }
    return Record(**{key: read(value, key) for key, read in readers.items() if key in value})


def _amount(record: Mapping[str, Any], key: str) -> float:
    value = record[key]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_AMOUNT:  # also false for NaN
        raise InvalidRecord(f"{key}: must be a number from 0 to {MAX_AMOUNT}")
    return float(value)


def control_prefix(fleet: str, run: str) -> str:
    """Return the prefix of a run's control records. `bootstrap.documents.object_keys` defines the keys."""
    return f"runs/{fleet}/{run}/control/"


def controller_prefix(fleet: str) -> str:
    """Return the prefix of a fleet's run controller in the control bucket, which nodes cannot access."""
    return f"controller/{fleet}/"


def state_key(fleet: str, run: str) -> str:
    """Return the key of a run's stored state in the control bucket."""
    return f"{controller_prefix(fleet)}{run}.json"


def text_of(record: Mapping[str, Any], key: str) -> str:
    """Return a string from a report. Raises InvalidRecord."""
    return _text(record, key)


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARACTERS:
        raise InvalidRecord(f"{key}: must be a string of at most {MAX_TEXT_CHARACTERS} characters")
    return value.encode(errors="replace").decode()  # a lone surrogate, which JSON permits, cannot be stored


def _choice(record: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> Any:
    value = record.get(key)
    if value not in choices:
        raise InvalidRecord(f"{key}: must be one of {', '.join(choices)}")
    return value


def _cause(record: Mapping[str, Any], key: str) -> Any:
    value = _choice(record, key, ("", *Cause))
    return Cause(value) if value else ""


def _count(record: Mapping[str, Any], key: str) -> int:
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise InvalidRecord(f"{key}: must be an integer from 0 to {MAX_COUNT}")
    return value


def _flag(record: Mapping[str, Any], key: str) -> bool:
    value = record[key]
    if not isinstance(value, bool):
        raise InvalidRecord(f"{key}: must be true or false")
    return value


def _time(record: Mapping[str, Any], key: str, latest: float) -> float | None:
    value = record[key]
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)) or not 0 <= value <= latest:
        raise InvalidRecord(f"{key}: must be null or a Unix time of at most {latest:.0f}")
    return float(value)


def _instances(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = record[key]
    if not isinstance(value, list) or len(value) > MAX_INSTANCES:
        raise InvalidRecord(f"{key}: must be a list of at most {MAX_INSTANCES} instance ids")
    if not all(isinstance(item, str) and INSTANCE_ID.fullmatch(item) for item in value):
        raise InvalidRecord(f"{key}: must contain only instance ids")
    return tuple(value)


def _subnets(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = record[key]
    if not isinstance(value, list) or not all(isinstance(item, str) and SUBNET_ID.fullmatch(item) for item in value):
        raise InvalidRecord(f"{key}: must be a list of subnet ids")
    return tuple(value)
