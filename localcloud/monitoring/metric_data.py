"""Statistics per period, computed from the metric data that moto stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moto.cloudwatch.models import CloudWatchBackend, Dimension, MetricDatum, cloudwatch_backends

STATISTICS = ("Average", "Maximum", "Minimum", "SampleCount", "Sum")
Points = dict[int, float]
"""Values by period number, counted backward: 0 is the last complete period."""


@dataclass(frozen=True)
class Series:
    """A metric."""

    namespace: str
    name: str
    dimensions: frozenset[tuple[str, str]] = frozenset()


@dataclass
class _Sample:
    unix_seconds: float
    total: float
    minimum: float
    maximum: float
    count: float


def backend(account: str, region: str) -> CloudWatchBackend:
    """Return moto's store of metrics and alarms."""
    return cloudwatch_backends[account][region]


def publish(
    account: str, region: str, series: Series, value: float, unit: str | None, unix_seconds: float | None = None
) -> None:
    """Add a value to a metric, by default with the current time."""
    datum: dict[str, Any] = {"MetricName": series.name, "Value": value, "Unit": unit}
    datum["Dimensions"] = [{"Name": name, "Value": text} for name, text in sorted(series.dimensions)]
    if unix_seconds is not None:
        datum["Timestamp"] = datetime.fromtimestamp(unix_seconds, UTC).replace(tzinfo=None)
    backend(account, region).put_metric_data(series.namespace, [datum])


def dimensions_of(stored: Iterable[Dimension]) -> frozenset[tuple[str, str]]:
    """Return the dimensions in moto's record as pairs."""
    return frozenset((str(each.name), str(each.value)) for each in stored)


def samples(stored: Iterable[Any], wanted: set[Series], from_unix_seconds: float) -> dict[Series, list[_Sample]]:
    """Return the requested metrics' samples since `from_unix_seconds`."""
    names = {series.name for series in wanted}
    found: dict[Series, list[_Sample]] = {series: [] for series in wanted}
    for datum in stored:
        if datum.name not in names:
            continue
        samples_of = found.get(Series(datum.namespace, datum.name, dimensions_of(datum.dimensions)))
        unix_seconds = _unix_seconds(datum.timestamp)
        if samples_of is None or unix_seconds < from_unix_seconds:
            continue
        if isinstance(datum, MetricDatum):
            samples_of.append(_Sample(unix_seconds, datum.value, datum.value, datum.value, 1.0))
        else:
            samples_of.append(_Sample(unix_seconds, datum.sum, datum.min, datum.max, datum.sample_count))
    return found


def points(found: Iterable[_Sample], statistic: str, period_seconds: int, periods: int, end: float) -> Points:
    """Return the statistic for each period before `end` (Unix seconds) that has samples."""
    by_period: dict[int, list[_Sample]] = {}
    for sample in found:
        age = end - sample.unix_seconds
        number = int((age - 1e-9) // period_seconds) if age > 0 else -1
        if 0 <= number < periods:
            by_period.setdefault(number, []).append(sample)
    return {number: _statistic(statistic, each) for number, each in by_period.items()}


def _statistic(name: str, found: list[_Sample]) -> float:
    total, count = sum(sample.total for sample in found), sum(sample.count for sample in found)
    by_name: Mapping[str, float] = {
        "Average": total / count,
        "Maximum": max(sample.maximum for sample in found),
        "Minimum": min(sample.minimum for sample in found),
        "SampleCount": count,
        "Sum": total,
    }
    return by_name[name]


def _unix_seconds(timestamp: datetime | str) -> float:
    when = datetime.fromisoformat(timestamp.replace("Z", "+00:00")) if isinstance(timestamp, str) else timestamp
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
