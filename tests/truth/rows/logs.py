"""CloudWatch Logs: filter patterns and metric filters.

The patterns come from AWS's page on filter patterns and its examples.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

from tests.truth.row import Account, Row

PAGE = "https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/FilterAndPatternSyntax-"
JSON = f"{PAGE}JSON.html"
TERMS = f"{PAGE}Unstructured.html"
FILTERS = f"{PAGE}MetricFilters.html"
RECORDED = (
    "https://github.com/localstack/localstack/blob/8b9a79f/tests/aws/services/logs/"
    "test_logs_metric_filters.snapshot.json#"
)
TRAIL = json.dumps(
    {
        "eventType": "UpdateTrail",
        "sourceIPAddress": "111.111.111.111",
        "arrayKey": ["value", "another value"],
        "objectList": [{"name": "a", "id": 1}, {"name": "b", "id": 2}],
        "SomeObject": None,
        "cluster.name": "c",
        "latency": 250,
        "ratio": 0.5,
        "code": "404",
        "flag": True,
        "off": False,
        "user": {"id": 7},
    }
)
LINES = (
    "[ERROR 400] BAD REQUEST",
    "[ERROR 401] UNAUTHORIZED REQUEST",
    "[WARN] ERRORS: exceptions",
    "[INFO] Exiting",
    "a line with INTERNAL SERVER ERROR",
)


def matching(pattern: str, *messages: str) -> Callable[[Account], Any]:
    """Return a function that returns the numbers of the matching messages."""

    def send(account: Account) -> Any:
        found = account.client("logs").test_metric_filter(filterPattern=pattern, logEventMessages=list(messages))
        return [each["eventNumber"] for each in found["matches"]]

    return send


def trail(pattern: str, matches: bool, page: str = JSON) -> Row:
    """Return the row for a pattern that matches or does not match the trail event."""
    name = f"pattern {pattern} {'matches' if matches else 'does not match'}"
    return Row(name, matching(pattern, TRAIL), page, holds=lambda found: found == [1] * matches)


def lines(pattern: str, *numbers: int) -> Row:
    return Row(f"pattern {pattern} matches lines", matching(pattern, *LINES), TERMS, holds=lambda n: n == list(numbers))


def refused(pattern: str, page: str = JSON) -> Row:
    send = matching(pattern, "a")
    return Row(f"pattern {pattern} is malformed", send, page, "InvalidParameterException", "Invalid", 400)


def put_filter(**change: Any) -> Callable[[Account], Any]:
    """Return a function that puts a filter into a new group, twice, and returns the group's filters."""

    def send(account: Account) -> Any:
        logs, group = account.client("logs"), change.get("logGroupName") or f"truth-{uuid.uuid4().hex}"
        if "logGroupName" not in change:
            logs.create_log_group(logGroupName=group)
        transformation = {"metricName": "m", "metricNamespace": "n", "metricValue": "1"}
        transformation |= change.get("transformation", {})
        parameters = {
            "logGroupName": group,
            "filterName": "f",
            "filterPattern": "ERROR",
            "metricTransformations": change.get("transformations", [transformation]),
        }
        parameters |= {name: value for name, value in change.items() if name.startswith("filter")}
        for _ in range(2):
            logs.put_metric_filter(**parameters)
        return logs.describe_metric_filters(logGroupName=group)["metricFilters"]

    return send


INVALID = {"code": "InvalidParameterException", "status": 400}
ROWS = [
    trail('{ $.eventType = "UpdateTrail" }', True),
    trail("{ $.eventType = UpdateTrail }", True),
    trail('{ $.eventType = "updatetrail" }', False),
    trail('{ $.sourceIPAddress != "123.123.*" }', True),
    trail("{ $.sourceIPAddress = 111.111.* }", True),
    trail('{ $.arrayKey[0] = "value" }', True),
    trail('{ $.arrayKey[1] = "value" }', False),
    trail('{ $.arrayKey[2] = "value" }', False),
    trail('{ $.arrayKey = "value" }', False),
    trail("{ $.user = * }", False),
    trail("{ $.objectList[1].id = 2 }", True),
    trail("{ $.objectList[0].id = 2 }", False),
    trail('{ $.objectList[*].name = "b" }', True),
    trail("{ $.user.id = 7 }", True),
    trail("{ $.user.id > 7 }", False),
    trail("{ $.user.id >= 7 }", True),
    trail("{ $.latency < 1e3 }", True),
    trail("{ $.latency <= 249.9 }", False),
    trail("{ $.latency != 250 }", False),
    trail("{ $.latency = 25* }", True),
    trail("{ $.latency = * }", True),
    trail("{ $.ratio = 0.5 }", True),
    trail("{ $.nothing = * }", False),
    trail("{ $.nothing NOT EXISTS }", True),
    trail("{ $.latency NOT EXISTS }", False),
    trail("{ $.SomeObject IS NULL }", True),
    trail("{ $.latency IS NULL }", False),
    trail("{ $.nothing IS NULL }", False),
    trail("{ $.flag IS TRUE }", True),
    trail("{ $.flag IS FALSE }", False),
    trail("{ $.off IS FALSE }", True),
    trail("{ ($.user.id = 7) && ($.latency > 1000) }", False),
    trail("{ ($.user.id = 7) || ($.latency > 1000) }", True),
    trail("{ ($.user.id = 8 || $.ratio < 1) && $.latency = 250 }", True),
    trail("{ $.user.id = 7 || $.ratio > 1 && $.latency = 0 }", True),
    Row("JSON pattern on a line of text", matching("{ $.a = * }", "a = 1"), JSON, holds=lambda found: not found),
    Row("JSON pattern on malformed JSON", matching("{ $.a = * }", '{"a": '), JSON, holds=lambda found: not found),
    lines("ERROR", 1, 2, 3, 5),
    lines("ERROR REQUEST", 1, 2),
    lines("ERROR -UNAUTHORIZED -WARN", 1, 5),
    lines("?BAD ?Exiting", 1, 4),
    lines('"INTERNAL SERVER ERROR"', 5),
    lines('"ERRORS:"', 3),
    lines("error"),
    lines("", 1, 2, 3, 4, 5),
    refused("{ $.a = }"),
    refused("{ $.a = 1"),
    refused("{ a = 1 }"),
    refused("{ $.a ~ 1 }"),
    refused("{ $.a = 1 && }"),
    refused("{ ($.a = 1 }"),
    refused("{ }"),
    refused("{ $.a > text }"),
    refused("{ $.a IS MAYBE }"),
    refused("{ $.a = 1 } rest"),
    refused("[ERROR", TERMS),
    refused('"open quote', TERMS),
    refused("ERROR:", TERMS),
    Row("metric filter replaces its predecessor", put_filter(), FILTERS, holds=lambda found: len(found) == 1),
    Row("metric filter with a default value", put_filter(transformation={"defaultValue": 0}), FILTERS),
    Row("metric filter with a selector", put_filter(transformation={"metricValue": "$.a.b"}), FILTERS),
    Row(
        "metric filter with a malformed value",
        put_filter(transformation={"metricValue": "seconds"}),
        FILTERS,
        words="Invalid metric transformation",
        **INVALID,
    ),
    Row(
        "metric filter with dimensions and a default value",
        put_filter(filterPattern="{ $.a = * }", transformation={"dimensions": {"a": "$.a"}, "defaultValue": 0}),
        FILTERS,
        words="mutually exclusive",
        **INVALID,
    ),
    Row("metric filter with a malformed pattern", put_filter(filterPattern="{ $.a = }"), FILTERS, **INVALID),
    Row(
        "metric filter with two transformations",
        put_filter(transformations=[{"metricName": "m", "metricNamespace": "n", "metricValue": "1"}] * 2),
        f"{RECORDED}TestMetricFilters::test_put_metric_filter_too_many_transformations",
        words="failed to satisfy constraint",
        **INVALID,
    ),
    Row(
        "metric filter with a pattern of 1,025 characters",
        put_filter(filterPattern="X" * 1025),
        f"{RECORDED}TestMetricFilters::test_put_metric_filter_invalid_filter_pattern",
        words="failed to satisfy constraint",
        **INVALID,
    ),
    Row(
        "metric filter in a group that does not exist",
        put_filter(logGroupName="truth-no-such-group"),
        "botocore: logs, PutMetricFilter, ResourceNotFoundException",
        code="ResourceNotFoundException",
        words="The specified log group does not exist",
        status=400,
    ),
]
