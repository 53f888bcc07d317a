"""Alarm states: AWS's tables for missing data, and metric math."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from moto.cloudwatch.models import Dimension, MetricAggregatedDatum, MetricDatum

from localcloud.monitoring.alarms import EXTRA_PERIODS, UnsupportedAlarm, evaluation_of
from localcloud.monitoring.metric_data import STATISTICS
from localcloud.monitoring.metric_math import Expression, InvalidExpression

END = 1_800_000_000
TREATMENTS = ("missing", "ignore", "breaching", "notBreaching")
UNKNOWN, KEPT = "INSUFFICIENT_DATA", None


def alarm(**changes: Any) -> Any:
    settings: dict[str, Any] = {
        "rule": None, "extended_statistic": None, "threshold_metric_id": None, "threshold": 1.0, "namespace": "n",
        "comparison_operator": "GreaterThanOrEqualToThreshold", "metric_data_queries": [], "metric_name": "m",
        "dimensions": [], "statistic": "Sum", "period": 60, "evaluation_periods": 3, "datapoints_to_alarm": None,
        "treat_missing_data": None,
    }  # fmt: skip
    return SimpleNamespace(**{**settings, **changes})


def datum(age_seconds: float, value: float, **changes: Any) -> MetricDatum:

    when = datetime.fromtimestamp(END - age_seconds, UTC).replace(tzinfo=None)
    return MetricDatum(changes.get("namespace", "n"), "m", value, changes.get("dimensions", []), when)


def data(text: str) -> list[MetricDatum]:
    """Return data points from AWS's notation: X is breaching, 0 is not, and - is missing. The last is the newest."""
    ages = dict(enumerate(reversed(text.split())))
    return [datum(60 * age + 30, float(symbol == "X")) for age, symbol in ages.items() if symbol != "-"]


# Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarms-and-missing-data.html
# (2026-11), tables for 3 out of 3 and for 2 out of 3 data points.
@pytest.mark.parametrize(
    ("to_alarm", "points", "states"),
    [
        (3, "0 - X - X", ("OK", "OK", "OK", "OK")),
        (3, "- - - - 0", ("OK", "OK", "OK", "OK")),
        (3, "- - - - -", (UNKNOWN, KEPT, "ALARM", "OK")),
        (3, "0 X X - X", ("ALARM", "ALARM", "ALARM", "ALARM")),
        (3, "- - X - -", ("ALARM", KEPT, "ALARM", "OK")),
        (2, "0 - X - X", ("ALARM", "ALARM", "ALARM", "ALARM")),
        (2, "0 0 X 0 X", ("ALARM", "ALARM", "ALARM", "ALARM")),
        (2, "0 - X - -", ("OK", "OK", "ALARM", "OK")),
        (2, "- - - - 0", ("OK", "OK", "ALARM", "OK")),
        (2, "- - - X -", ("ALARM", KEPT, "ALARM", "OK")),
    ],
)
def test_missing_data_counts_as_in_the_tables_of_aws(to_alarm: int, points: str, states: tuple[str | None]) -> None:
    for treatment, state in zip(TREATMENTS, states, strict=True):
        found = evaluation_of(alarm(datapoints_to_alarm=to_alarm, treat_missing_data=treatment))
        assert found.state(data(points), END) == state, treatment


@pytest.mark.parametrize(
    ("statistic", "value"),
    [("Sum", 9), ("Average", 3), ("Minimum", 1), ("Maximum", 5), ("SampleCount", 3)],
)
def test_statistics_of_a_period(statistic: str, value: float) -> None:

    when = datetime.fromtimestamp(END - 1, UTC).replace(tzinfo=None)
    stored = [datum(30, 3.0), MetricAggregatedDatum("n", "m", 1.0, 5.0, 2.0, 6.0, [], when)]
    for threshold, state in ((value, "ALARM"), (value + 0.1, "OK")):
        settings = {"statistic": statistic, "threshold": threshold, "evaluation_periods": 1}
        assert evaluation_of(alarm(**settings)).state(stored, END) == state
    assert statistic in STATISTICS


def test_data_of_other_metrics_and_later_periods_does_not_count() -> None:
    found = evaluation_of(alarm(evaluation_periods=1, treat_missing_data="notBreaching"))
    others = [datum(30, 1.0, namespace="other"), datum(30, 1.0, dimensions=[{"Name": "a", "Value": "b"}])]
    late = [datum(-10, 1.0), datum(60 * (1 + EXTRA_PERIODS) + 1, 1.0)]
    assert found.state([*others, *late], END) == "OK"
    assert found.state([datum(60, 1.0)], END) == "ALARM"


def test_metric_with_dimensions() -> None:
    settings = {"dimensions": [Dimension("a", "b")], "evaluation_periods": 1}
    found = evaluation_of(alarm(**settings))
    assert found.state([datum(30, 1.0, dimensions=[{"Name": "a", "Value": "b"}])], END) == "ALARM"
    assert found.state([datum(30, 1.0)], END) == UNKNOWN


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extended_statistic": "p99"}, "percentiles"),
        ({"rule": "ALARM(a)"}, "composite"),
        ({"statistic": "IQM"}, "statistic IQM is not emulated"),
        ({"comparison_operator": "LessThanLowerThreshold"}, "is not emulated"),
    ],
)
def test_alarm_that_is_not_evaluated_is_rejected(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedAlarm, match=words):
        evaluation_of(alarm(**change))


# Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/using-metric-math.html (2026-11).
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a + 1", {0: 2.0, 2: 4.0}),
        ("a / b", {2: 3.0}),
        ("-a * 2 ^ 3", {0: -8.0, 2: -24.0}),
        ("FILL(b, 0)", {0: 0.0, 1: 5.0, 2: 1.0}),
        ("FILL(a, REPEAT)", {0: 1.0, 1: 3.0, 2: 3.0}),
        ("FILL(b, REPEAT)", {0: 5.0, 1: 5.0, 2: 1.0}),
        ("FILL(none, REPEAT)", {}),
        ("FILL(none, 7)", {0: 7.0, 1: 7.0, 2: 7.0}),
        ("IF(FILL(b, 0) > 0 AND FILL(a, REPEAT) == 3, 1, 0)", {0: 0.0, 1: 1.0, 2: 1.0}),
        ("IF(b > 1 || b < 1, a, 100)", {2: 100.0}),
        ("5", {0: 5.0, 1: 5.0, 2: 5.0}),
    ],
)
def test_metric_math(text: str, values: dict[int, float]) -> None:
    metrics = {"a": {0: 1.0, 2: 3.0}, "b": {1: 5.0, 2: 1.0}, "none": {}}
    assert Expression(text, set(metrics)).values(metrics, 3) == values


@pytest.mark.parametrize("text", ["a +", "c + 1", "ANOMALY_DETECTION_BAND(a)", "FILL(a, LINEAR)", "a.b", "a[0]", "'x'"])
def test_expression_that_is_not_evaluated_is_rejected(text: str) -> None:
    with pytest.raises(InvalidExpression, match="Error in expression"):
        Expression(text, {"a"})
