"""CloudWatch Logs' metric filters, which publish metrics from log events.

Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/MonitoringLogData.html (2026-11).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from moto.logs.models import logs_backends

from localcloud.api import ApiError, Call, Clients, Handler, Observer, Service
from localcloud.monitoring.filter_pattern import (
    Event,
    InvalidPattern,
    Test,
    event_of,
    is_selector,
    parse_pattern,
    select,
)
from localcloud.monitoring.metric_data import Series, publish

PARSED_PATTERNS = 256
OLDEST_SECONDS, NEWEST_SECONDS = 14 * 86400, 2 * 3600
"""How old, and how far in the future, an event can be. Source: PutLogEvents in botocore's model (1.44)."""
DIMENSIONS = 3
"""Source: dimensions of MetricTransformation in botocore's model of CloudWatch Logs (1.44)."""
_parsed = lru_cache(maxsize=PARSED_PATTERNS)(parse_pattern)


class MetricFilters(Service):
    """Validates filters, which moto stores, and publishes their metrics."""

    name = "logs"

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers."""
        return {"PutMetricFilter": self._put, "TestMetricFilter": self._test}

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return the observer of log events."""
        return {("logs", "PutLogEvents"): self._logged}

    def _put(self, call: Call) -> Mapping[str, Any]:
        _pattern_of(call)
        for transformation in call.parameters["metricTransformations"]:
            _check_transformation(transformation)
        logs = self._clients.direct("logs", region=call.region)
        name, group = call.parameters["filterName"], call.parameters["logGroupName"]
        logs.describe_log_streams(logGroupName=group, limit=1)
        # moto would keep both filters; AWS replaces the filter with the same name.
        logs.delete_metric_filter(filterName=name, logGroupName=group)
        logs.put_metric_filter(**call.parameters)
        return {}

    def _test(self, call: Call) -> Mapping[str, Any]:
        test = _pattern_of(call)
        events = enumerate(call.parameters["logEventMessages"], 1)
        matching = [(number, message) for number, message in events if test(event_of(message))]
        return {
            "matches": [
                {"eventNumber": number, "eventMessage": message, "extractedValues": {}} for number, message in matching
            ]
        }

    def _logged(self, call: Call, answer: Mapping[str, Any]) -> None:
        group, account = call.parameters["logGroupName"], self._clients.account
        filters = logs_backends[account][call.region].filters.get_matching_filters(log_group_name=group)
        if not filters:
            return
        accepted = range(int((time.time() - OLDEST_SECONDS) * 1000), int((time.time() + NEWEST_SECONDS) * 1000))
        events = [
            (each["timestamp"], event_of(each["message"]))
            for each in call.parameters["logEvents"]
            if each["timestamp"] in accepted
        ]
        if not events:
            return
        for each in filters:
            for transformation in each["metricTransformations"]:
                self._publish(call.region, _parsed(each["filterPattern"]), transformation, events)

    def _publish(
        self, region: str, test: Test, transformation: Mapping[str, Any], events: Sequence[tuple[int, Event]]
    ) -> None:
        """Publish a value for each matching event, or the default value once if no event in the request matches."""
        namespace, name = transformation["metricNamespace"], transformation["metricName"]
        matching = [(milliseconds, event) for milliseconds, event in events if test(event)]
        for milliseconds, event in matching:
            value = _value(transformation["metricValue"], event)
            dimensions = _dimensions(transformation.get("dimensions", {}), event)
            if value is not None and dimensions is not None:
                series = Series(namespace, name, dimensions)
                publish(self._clients.account, region, series, value, transformation.get("unit"), milliseconds / 1000)
        default = transformation.get("defaultValue")
        if not matching and default is not None:
            series, latest = Series(namespace, name), events[-1][0] / 1000
            publish(self._clients.account, region, series, float(default), transformation.get("unit"), latest)


def _pattern_of(call: Call) -> Test:
    try:
        return _parsed(call.parameters["filterPattern"])
    except InvalidPattern as error:
        raise ApiError("InvalidParameterException", f"Invalid metric filter pattern: {error}") from error


def _check_transformation(transformation: Mapping[str, Any]) -> None:
    value, dimensions = str(transformation["metricValue"]), transformation.get("dimensions", {})
    if not is_selector(value) and _finite(value) is None:
        raise ApiError("InvalidParameterException", f"Invalid metric transformation: metricValue {value} is not a "
                       "number or a property selector")  # fmt: skip
    if dimensions and transformation.get("defaultValue") is not None:
        rule = "Invalid metric transformation: dimensions and default value are mutually exclusive properties."
        raise ApiError("InvalidParameterException", rule)
    if len(dimensions) > DIMENSIONS:
        raise ApiError("InvalidParameterException", f"Invalid metric transformation: more than {DIMENSIONS} dimensions")


def _value(text: str, event: Event) -> float | None:
    """Return the number that a transformation publishes for an event, or None if there is none."""
    if not text.startswith("$"):
        return _finite(text)
    found = select(text, event[1]) if isinstance(event[1], dict) else []
    return _finite(found[0]) if len(found) == 1 and not isinstance(found[0], bool) else None


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _dimensions(selectors: Mapping[str, str], event: Event) -> frozenset[tuple[str, str]] | None:
    """Return the dimensions of an event, or None if one of them is missing."""
    found = {name: select(selector, event[1]) for name, selector in selectors.items()}
    if any(len(values) != 1 for values in found.values()):
        return None
    return frozenset((name, str(values[0])) for name, values in found.items())
