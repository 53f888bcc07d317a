"""Formats numbers, amounts and times for a report."""

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


def plural(number: int, noun: str, ending: str = "s") -> str:
    """Return a number with its noun, such as 1 interruption or 2 interruptions; `ending` makes the plural."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{ending}"


def short_id(instance_id: str) -> str:
    """Return the start of an instance ID, which is enough to distinguish a few instances."""
    return instance_id if len(instance_id) <= 12 else f"{instance_id[:10]}\u2026"


def size(num_bytes: float | None) -> str:
    """Return a size such as 12.3 MB."""
    if num_bytes is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} TB"


def duration_ticks(seconds: float, wanted: int = 6) -> list[float]:
    """Return at most `wanted` + 1 ticks in round units, such as every 10 s, 5 min or 2 h, from 0 to `seconds`."""
    steps = [1, 2, 5, 10, 15, 30, *(60 * n for n in (1, 2, 5, 10, 15, 30)), *(3600 * n for n in (1, 2, 3, 6, 12, 24))]
    days = 1
    while steps[-1] * wanted < seconds:
        days *= 2
        steps.append(86400 * days)
    step = next(each for each in steps if each * wanted >= seconds)
    return [float(number * step) for number in range(int(seconds / step + 1e-9) + 1)]


def tick(seconds: float) -> str:
    """Return a tick's label in its largest round unit, such as 30 s, 5 min or 2 h."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
