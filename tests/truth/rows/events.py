"""EventBridge: patterns, targets and the events that users send.

The sources are LocalStack's snapshot tests, whose responses were recorded on AWS.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

from tests.truth.row import Account, Row

RECORDED = "https://github.com/localstack/localstack/blob/8b9a79f/tests/aws/services/events/"
PATTERNS = f"{RECORDED}test_events_patterns.snapshot.json#TestEventPattern::"
EVENTS = f"{RECORDED}test_events.snapshot.json#"
EVENT = {
    "id": "1", "source": "test", "detail-type": "t", "account": "123456789012", "region": "us-east-1",
    "time": "2026-01-01T00:00:00Z",
}  # fmt: skip
MALFORMED = {"code": "InvalidEventPatternException", "status": 400}
INVALID = {"code": "ValidationException", "status": 400}


def tested(pattern: Any, event: Any) -> Callable[[Account], Any]:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in (pattern, event)]
    return lambda account: account.client("events").test_event_pattern(EventPattern=texts[0], Event=texts[1])["Result"]


def result(test: str, detail: Any, pattern: Any, expected: bool) -> Row:
    """Return the row that tests a pattern against an event's detail."""
    send = tested({"detail": pattern}, {**EVENT, "detail": detail})
    name = f"pattern {json.dumps(pattern)} with {json.dumps(detail)}"
    return Row(name, send, f"{PATTERNS}test_event_pattern[{test}]", holds=lambda found: found is expected)


def refused(test: str, pattern: Any, words: str, gap: str = "") -> Row:
    send = tested(pattern, {**EVENT, "detail": {}})
    source = f"{PATTERNS}test_event_pattern[{test}]" if test.endswith("EXC") else PATTERNS + test
    return Row(f"pattern {json.dumps(pattern)}", send, source, words=words, gap=gap, **MALFORMED)


def put_targets(*identities: str, before: int = 0) -> Callable[[Account], Any]:
    """Return a function that adds targets to a new rule, which already has `before` targets."""

    def send(account: Account) -> Any:
        events, name = account.client("events"), f"truth-{uuid.uuid4().hex}"
        events.put_rule(Name=name, EventPattern='{"source": ["a"]}')
        arn = "arn:aws:sqs:us-east-1:123456789012:q"
        if before:
            events.put_targets(Rule=name, Targets=[{"Id": f"t{number}", "Arn": arn} for number in range(before)])
        return events.put_targets(Rule=name, Targets=[{"Id": identity, "Arn": arn} for identity in identities])

    return send


def put_events(*entries: dict[str, str]) -> Callable[[Account], Any]:
    return lambda account: account.client("events").put_events(Entries=list(entries))


def entry(**change: str) -> dict[str, str]:
    made = {"Source": "s", "DetailType": "t", "Detail": "{}"} | change
    return {name: value for name, value in made.items() if value}


def failed(code: str, message: str) -> Callable[[Any], bool]:
    wanted = {"ErrorCode": code, "ErrorMessage": message}
    return lambda answer: answer["FailedEntryCount"] == 1 and answer["Entries"] == [wanted]


def required(name: str) -> Callable[[Any], bool]:
    return failed("InvalidArgument", f"Parameter {name} is not valid. Reason: {name} is a required argument.")


ROWS = [
    result("number_comparison_float", {"number": 300.0}, {"number": [300]}, True),
    result("numeric-int-float", {"number": 300}, {"number": [300.0]}, True),
    result("string", {"a": "x"}, {"a": ["x", "y"]}, True),
    result("key_case_sensitive_NEG", {"a": "x"}, {"A": ["x"]}, False),
    result("arrays", {"a": ["x", "y"]}, {"a": ["y", "z"]}, True),
    result("arrays_NEG", {"a": ["x", "y"]}, {"a": ["z"]}, False),
    result("arrays_empty_null_NEG", {"a": []}, {"a": [None]}, False),
    result("null_value", {"a": None}, {"a": [None]}, True),
    result("null_value_NEG", {"a": "null"}, {"a": [None]}, False),
    result("boolean", {"a": True}, {"a": [True]}, True),
    result("boolean_NEG", {"a": False}, {"a": [True]}, False),
    result("string_empty", {"a": ""}, {"a": [""]}, True),
    result("dot_joining_event", {"state.status": "running"}, {"state": {"status": ["running"]}}, True),
    result("dot_joining_event_NEG", {"state.status": "running"}, {"state": {"status": ["stopped"]}}, False),
    result("dot_joining_pattern", {"state": {"status": "running"}}, {"state.status": ["running"]}, True),
    result("dot_joining_pattern_NEG", {"state": {"not": "running"}}, {"state.status": ["running"]}, False),
    result("content_prefix", {"a": "eu-1"}, {"a": [{"prefix": "eu-"}]}, True),
    result("content_prefix_NEG", {"a": "us-1"}, {"a": [{"prefix": "eu-"}]}, False),
    result("content_prefix_empty", {"a": "us-1"}, {"a": [{"prefix": ""}]}, True),
    result("content_wildcard_simplified", {"a": "dir/a.png"}, {"a": [{"wildcard": "dir/*.png"}]}, True),
    result("content_wildcard_nonrepeating_NEG", {"a": "dir/a.jpg"}, {"a": [{"wildcard": "dir/*.png"}]}, False),
    result("content_wildcard_empty_NEG", {"a": "x"}, {"a": [{"wildcard": ""}]}, False),
    result("nested_json_NEG", {"a": {"b": {"c": 2}}}, {"a": {"b": {"c": [1]}}}, False),
    refused("arrays_empty_EXC", {"detail": {"a": []}}, "Event pattern is not valid. Reason: "),
    refused("string_nolist_EXC", {"detail": {"a": "x"}}, "must be an object or an array"),
    refused("int_nolist_EXC", {"detail": {"a": 42}}, "must be an object or an array"),
    refused("content_prefix_int_EXC", {"a": [{"prefix": 123}]}, "prefix match pattern must be a string"),
    refused("content_prefix_list_EXC", {"a": [{"prefix": ["x"]}]}, "prefix match pattern must be a string"),
    refused("content_wildcard_int_EXC", {"a": [{"wildcard": 123}]}, "wildcard match pattern must be a string"),
    refused("content_wildcard_list_EXC", {"a": [{"wildcard": ["x"]}]}, "wildcard match pattern must be a string"),
    refused("content_wildcard_repeating_star_EXC", {"a": [{"wildcard": "a**b"}]}, "onsecutive wildcard characters"),
    refused("operator_case_sensitive_EXC", {"a": [{"EXISTS": True}]}, "match type EXISTS"),
    refused("content_numeric_operatorcasing_EXC", {"a": [{"NUMERIC": [">", 1]}]}, "match type NUMERIC"),
    refused("test_invalid_json_event_pattern", ["not", "a", "dict"], "Event pattern is not valid. Reason: "),
    refused(
        "content_wildcard_complex_EXC",
        {"EventBusArn": [{"wildcard": "*:*:*:*:*:event-bus/*"}]},
        "Rule is too complex",
        gap="AWS does not publish its limit on the complexity of wildcards",
    ),
    Row(
        "pattern that is not JSON",
        tested('{"not": closed mark"', EVENT),
        f"{PATTERNS}test_invalid_json_event_pattern",
        words="Event pattern is not valid. Reason: ",
        **MALFORMED,
    ),
    *(
        Row(f"test with the event {event}", tested({"source": ["a"]}, event), PATTERNS + test, words=words, **INVALID)
        for event, test in (
            ("plain string", "test_plain_string_payload"),
            ('["a"]', "test_array_event_payload"),
            ('{"testEvent": "value"}', "test_invalid_event_payload"),
        )
        for words in ("Parameter Event is not valid.",)
    ),
    Row("5 targets", put_targets("a", before=4), f"{EVENTS}TestEventTarget::test_add_exceed_fife_targets_per_rule"),
    Row(
        "target that replaces one with the same ID",
        put_targets("t0", before=5),
        "botocore: events, PutTargets: targets are updated if they are already associated with the rule",
    ),
    Row(
        "6 targets, one by one",
        put_targets("a", before=5),
        f"{EVENTS}TestEventTarget::test_add_exceed_fife_targets_per_rule",
        code="LimitExceededException",
        words="The requested resource exceeds the maximum number allowed.",
        status=400,
    ),
    Row(
        "target with a malformed ID",
        put_targets("!@#$@!#$"),
        f"{EVENTS}TestEventTarget::test_put_target_id_validation",
        words=r"at 'targets.1.member.id' failed to satisfy constraint: Member must satisfy regular expression pattern:",
        **INVALID,
    ),
    Row(
        "target with an ID of 65 characters",
        put_targets("x" * 65),
        f"{EVENTS}TestEventTarget::test_put_target_id_validation",
        words="at 'targets.1.member.id' failed to satisfy constraint: Member must have length less than or equal to 64",
        **INVALID,
    ),
    Row(
        "PutEvents without a source",
        put_events(entry(Source="")),
        f"{EVENTS}TestEvents::test_put_events_without_source",
        holds=required("Source"),
    ),
    Row(
        "PutEvents without a detail",
        put_events(entry(Detail="")),
        f"{EVENTS}TestEvents::test_put_event_without_detail",
        holds=required("Detail"),
    ),
    Row(
        "PutEvents without a detail type",
        put_events(entry(DetailType="")),
        f"{EVENTS}TestEvents::test_put_event_without_detail_type",
        holds=required("DetailType"),
    ),
    *(
        Row(
            f"PutEvents with the detail {detail}",
            put_events(entry(Detail=detail)),
            f"{EVENTS}TestEvents::test_put_event_malformed_detail",
            holds=failed("MalformedDetail", "Detail is malformed."),
        )
        for detail in ("text", "[1]", '{"a": ', '"text"')
    ),
    Row(
        "PutEvents of more than 1 MiB",
        put_events(entry(Detail=json.dumps({"a": "x" * (1 << 20)}))),
        f"{EVENTS}TestEvents::test_put_event_with_too_big_detail",
        words="Total size of the entries in the request is over the limit.",
        **INVALID,
    ),
    Row(
        "PutEvents with 11 entries",
        put_events(*[entry()] * 11),
        f"{EVENTS}TestEvents::test_put_events_exceed_limit_ten_entries",
        words="Member must have length less than or equal to 10",
        **INVALID,
    ),
]
