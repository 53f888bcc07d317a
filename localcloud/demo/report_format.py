"""Figures as a person reads them."""

from __future__ import annotations

from datetime import datetime, timezone

MISSING = "\u2013"


def count(value: float | None) -> str:
    """Return a whole number with thin groups of three: 12 345."""
    return MISSING if value is None else f"{value:,.0f}".replace(",", "\u202f")


def decimal(value: float | None, places: int = 2) -> str:
    """Return a number with fixed places."""
    return MISSING if value is None else f"{value:.{places}f}"


def dollars(value: float | None) -> str:
    """Return an amount with at least two significant digits: $12.30, $0.0123."""
    if value is None:
        return MISSING
    return f"${value:,.2f}" if value >= 1 or value == 0 else f"${value:.4f}"


def duration(seconds: float | None) -> str:
    """Return 4.2 s, 74 s, 12 min 5 s, 3 h 4 min."""
    if seconds is None:
        return MISSING
    if 0 < seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def clock(unix_seconds: float) -> str:
    """Return the time of day in UTC."""
    return datetime.fromtimestamp(unix_seconds, timezone.utc).strftime("%H:%M:%S")


def moment(unix_seconds: float) -> str:
    """Return date and time in UTC."""
    return datetime.fromtimestamp(unix_seconds, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def percent(share: float | None) -> str:
    """Return a share as whole percent."""
    return MISSING if share is None else f"{share * 100:.0f}\u2009%"


def plural(number: int, noun: str) -> str:
    """Return 1 interruption, 2 interruptions."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def short_id(instance_id: str) -> str:
    """Return an instance id's start, enough to tell a few apart."""
    return instance_id if len(instance_id) <= 12 else f"{instance_id[:10]}\u2026"
