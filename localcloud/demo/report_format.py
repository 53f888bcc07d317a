"""Formats numbers, amounts and times for display."""

from __future__ import annotations

from datetime import UTC, datetime

MISSING = "\u2013"


def count(value: float | None) -> str:
    """Return a rounded number with thin spaces between groups of three digits, such as 12 345."""
    return MISSING if value is None else f"{value:,.0f}".replace(",", "\u202f")


def decimal(value: float | None, places: int = 2) -> str:
    """Return a number with a fixed number of decimal places."""
    return MISSING if value is None else f"{value:.{places}f}"


def dollars(value: float | None) -> str:
    """Return an amount with at least two significant digits, such as $12.30 or $0.0123."""
    if value is None:
        return MISSING
    return f"${value:,.2f}" if value >= 1 or value == 0 else f"${value:.4f}"


def duration(seconds: float | None) -> str:
    """Return a duration such as 4.2 s, 74 s, 12 min 5 s or 3 h 4 min."""
    if seconds is None:
        return MISSING
    if 0 < seconds < 10:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 120:
        return f"{rounded} s"
    if rounded < 7200:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"


def clock(unix_seconds: float) -> str:
    """Return the time of day in UTC."""
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%H:%M:%S")


def date_time(unix_seconds: float) -> str:
    """Return the date and time in UTC."""
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def percent(share: float | None) -> str:
    """Return a share as a rounded percentage."""
    return MISSING if share is None else f"{share * 100:.0f}\u2009%"


def plural(number: int, noun: str) -> str:
    """Return a number with its noun, such as 1 interruption or 2 interruptions."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def short_id(instance_id: str) -> str:
    """Return the start of an instance ID, which is enough to distinguish a few instances."""
    return instance_id if len(instance_id) <= 12 else f"{instance_id[:10]}\u2026"
