"""Moments as the API has them, and as Unix seconds."""

from __future__ import annotations

from datetime import datetime, timezone


def aware(moment: datetime) -> datetime:
    """Return a parameter's moment with its time zone: what the gateway parses without one is UTC."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def unix_seconds(moment: datetime) -> float:
    """Return a parameter's moment in Unix seconds."""
    return aware(moment).timestamp()


def moment_of(seconds: float) -> datetime:
    """Return Unix seconds as the API shows them."""
    return datetime.fromtimestamp(seconds, timezone.utc)
