"""Evaluates alarms.

Sources (2026-11): https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarm-evaluation.html,
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarms-and-missing-data.html
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moto.cloudwatch.models import Alarm

from localcloud.monitoring.metric_data import STATISTICS, Points, Series, dimensions_of, points, samples
from localcloud.monitoring.metric_math import Expression, InvalidExpression

EXTRA_PERIODS = 2
"""Periods that CloudWatch reads in addition to the evaluation periods, as in the tables in AWS's second source."""
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "GreaterThanOrEqualToThreshold": operator.ge,
    "GreaterThanThreshold": operator.gt,
    "LessThanOrEqualToThreshold": operator.le,
    "LessThanThreshold": operator.lt,
}
OK, ALARM, INSUFFICIENT_DATA = "OK", "ALARM", "INSUFFICIENT_DATA"


class UnsupportedAlarm(ValueError):
    """The embedded cloud does not evaluate this alarm. The message contains the setting and the rule."""


@dataclass(frozen=True)
class _Stat:
    series: Series
    statistic: str


@dataclass(frozen=True)
class Evaluation:
    """An alarm's rule, taken from moto's record.

    Raises:
        UnsupportedAlarm: The alarm has settings that are not evaluated.
    """

    stats: Mapping[str, _Stat]
    expression: Expression
    period_seconds: int
    periods: int
    to_alarm: int
    breaches: Callable[[float], bool]
    missing: str

    @property
    def seconds(self) -> int:
        """The length of the time range that the evaluation covers."""
        return self.period_seconds * (self.periods + EXTRA_PERIODS)

    def state(self, stored: Iterable[Any], end: float) -> str | None:
        """Return the state for the periods before `end` (Unix seconds), or None if the alarm keeps its state."""
        number = self.periods + EXTRA_PERIODS
        wanted = {stat.series for stat in self.stats.values()}
        found = samples(stored, wanted, end - self.seconds)
        metrics = {
            name: points(found[stat.series], stat.statistic, self.period_seconds, number, end)
            for name, stat in self.stats.items()
        }
        return self._judge(self.expression.values(metrics, number))

    def _judge(self, values: Points) -> str | None:
        latest = sorted(values)[: self.periods]
        breaching = [period for period in latest if self.breaches(values[period])]
        filled = self.periods - len(latest)
        if filled == 0 or self.missing in ("breaching", "notBreaching"):
            count = len(breaching) + (filled if self.missing == "breaching" else 0)
            return ALARM if count >= self.to_alarm else OK
        if not latest:
            return None if self.missing == "ignore" else INSUFFICIENT_DATA
        if len(breaching) < len(latest):
            return ALARM if len(breaching) >= self.to_alarm else OK
        # All data points are breaching. The oldest must be at least `to_alarm` periods old.
        return ALARM if self.missing == "missing" and breaching[-1] + 1 >= self.to_alarm else None


def evaluation_of(alarm: Alarm) -> Evaluation:
    """Return the evaluation of an alarm in moto's store.

    Raises:
        UnsupportedAlarm: The alarm has settings that are not evaluated.
    """
    if alarm.rule or alarm.extended_statistic or alarm.threshold_metric_id:
        raise UnsupportedAlarm("composite alarms, percentiles and anomaly detection are not emulated")
    if alarm.comparison_operator not in COMPARISONS:
        raise UnsupportedAlarm(f"ComparisonOperator {alarm.comparison_operator} is not emulated")
    compare, threshold = COMPARISONS[alarm.comparison_operator], float(alarm.threshold)
    stats, expression, period_seconds = _watched(alarm)
    for stat in stats.values():
        if stat.statistic not in STATISTICS:
            raise UnsupportedAlarm(f"statistic {stat.statistic} is not emulated; use one of: {', '.join(STATISTICS)}")
    periods = int(alarm.evaluation_periods)
    try:
        parsed = Expression(expression, set(stats))
    except InvalidExpression as error:
        raise UnsupportedAlarm(str(error)) from error
    return Evaluation(
        stats,
        parsed,
        period_seconds,
        periods,
        int(alarm.datapoints_to_alarm or periods),
        lambda value: compare(value, threshold),
        alarm.treat_missing_data or "missing",
    )


def _watched(alarm: Alarm) -> tuple[dict[str, _Stat], str, int]:
    """Return the metrics by ID, the expression for the watched value, and the period in seconds."""
    queries = alarm.metric_data_queries
    if not queries:
        series = Series(alarm.namespace, alarm.metric_name, dimensions_of(alarm.dimensions))
        return {"metric": _Stat(series, alarm.statistic)}, "metric", int(alarm.period)
    stats = {}
    for query in queries:
        if query.metric_stat is not None:
            metric = query.metric_stat.metric
            series = Series(metric.namespace, metric.metric_name, dimensions_of(metric.dimensions))
            stats[query.id] = _Stat(series, query.metric_stat.stat)
    returned = [query for query in queries if query.return_data is None or str(query.return_data).lower() == "true"]
    if len(returned) != 1 or sum(query.expression is not None for query in queries) > 1:
        raise UnsupportedAlarm("one metric or expression must return data, and only one expression is emulated")
    (watched,) = returned
    lengths = {int(query.metric_stat.period) for query in queries if query.metric_stat is not None}
    if len(lengths) != 1:
        raise UnsupportedAlarm("the metrics of an expression must have the same period")
    return stats, watched.expression or watched.id, lengths.pop()
