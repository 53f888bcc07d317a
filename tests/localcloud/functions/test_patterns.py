"""Event patterns: AWS's documented examples, and properties of matching."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcloud.events.patterns import InvalidPattern, matches, parse_pattern

INSTANCE_EVENT = {
    "version": "0",
    "id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718",
    "detail-type": "EC2 Instance State-change Notification",
    "source": "aws.ec2",
    "account": "111122223333",
    "time": "2017-12-22T18:43:48Z",
    "region": "us-west-1",
    "resources": ["arn:aws:ec2:us-west-1:123456789012:instance/i-1234567890abcdef0"],
    "detail": {"instance-id": "i-1234567890abcdef0", "state": "terminated"},
}


def check(pattern: Any, event: Any) -> bool:
    return matches(parse_pattern(json.dumps(pattern)), event)


def test_documented_pattern_matches_its_event() -> None:
    pattern = {"source": ["aws.ec2"], "detail-type": ["EC2 Instance State-change Notification"]}
    assert check({**pattern, "detail": {"state": ["terminated"]}}, INSTANCE_EVENT)
    assert not check({**pattern, "detail": {"state": ["running", "stopped"]}}, INSTANCE_EVENT)
    assert check({"resources": [{"wildcard": "*/i-1234567890abcdef0"}]}, INSTANCE_EVENT)
    assert not check({"detail": {"nothing": ["terminated"]}}, INSTANCE_EVENT)


@pytest.mark.parametrize(
    ("matcher", "matching", "other"),
    [
        (["a", "b"], ["a", "b"], ["c", "A", None, 1]),
        ([None], [None], ["", "null", 0, False]),
        ([True], [True], [1, "true", False]),
        ([100], [100, 100.0], ["100", 101, True]),
        ([{"prefix": "2017-10-02"}], ["2017-10-02T18:43:48Z", "2017-10-02"], ["2017-10-03", 2017]),
        ([{"wildcard": "dir/*.png"}], ["dir/a.png", "dir/sub/b.png", "dir/.png"], ["a/dir/a.png", "dir/a.jpg"]),
        ([{"wildcard": "a\\*b"}], ["a*b"], ["axb"]),
        ([{"wildcard": "c:\\\\*"}], ["c:\\x"], ["c:x"]),
        ([{"prefix": "x"}, "y"], ["xa", "y"], ["a", 5]),
    ],
)
def test_matcher_accepts_its_values_only(matcher: Any, matching: list[Any], other: list[Any]) -> None:
    for value in matching:
        assert check({"detail": {"field": matcher}}, {"detail": {"field": value}}), value
        assert check({"detail": {"field": matcher}}, {"detail": {"field": [value]}}), value
    for value in other:
        assert not check({"detail": {"field": matcher}}, {"detail": {"field": value}}), value


@pytest.mark.parametrize(
    "event",
    [{"detail": {"state": {"code": 1}}}, {"detail": {"state.code": 1}}, {"detail": [{"state": 1}, {"state.code": 1}]}],
)
def test_dots_in_keys_are_nested_keys(event: Any) -> None:
    assert check({"detail": {"state.code": [1]}}, event)
    assert check({"detail": {"state": {"code": [1]}}}, event)
    assert not check({"detail": {"state.code": [2]}}, event)
    assert not check({"detail": {"stat": [1]}}, event)


def test_array_matches_if_any_element_matches() -> None:
    assert check({"resources": ["b", "z"]}, {"resources": ["a", "b"]})
    assert not check({"resources": ["c"]}, {"resources": ["a", "b"]})


def test_fields_of_an_object_in_an_array_match_within_one_element() -> None:
    event = {"employees": [{"name": "ann", "role": "dev"}, {"name": "bob", "role": "ops"}]}
    assert check({"employees": {"name": ["ann"], "role": ["dev"]}}, event)
    assert not check({"employees": {"name": ["ann"], "role": ["ops"]}}, event)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("{", "not JSON"),
        ("[]", "must be a non-empty JSON object"),
        ("{}", "non-empty"),
        ('{"source": "aws.ec2"}', "source: .*must be an object or an array"),
        ('{"source": []}', "empty array"),
        ('{"detail": {}}', "empty object"),
        ('{"source": [["a"]]}', "array inside an array"),
        ('{"source": [{"begins": "a"}]}', "match type begins is not emulated; use prefix, wildcard"),
        ('{"source": [{"prefix": "a", "suffix": "b"}]}', "exactly one operator"),
        ('{"source": [{"prefix": 1}]}', "prefix match pattern must be a string"),
        ('{"a": [{"wildcard": "a**b"}]}', "consecutive"),
        ('{"a": [{"wildcard": "a\\\\b"}]}', "backslash"),
    ],
)
def test_invalid_pattern_is_refused_with_path_and_rule(pattern: str, message: str) -> None:
    with pytest.raises(InvalidPattern, match=message):
        parse_pattern(pattern)


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-(10**6), 10**6), st.text(max_size=8))
EVENTS = st.recursive(
    st.dictionaries(st.text("abcd", min_size=1, max_size=3), LEAVES, min_size=1, max_size=4),
    lambda inner: st.dictionaries(
        st.text("abcd", min_size=1, max_size=3), st.one_of(LEAVES, inner), min_size=1, max_size=4
    ),
    max_leaves=12,
)


def pattern_of(event: Any) -> Any:
    return {key: pattern_of(value) if isinstance(value, dict) else [value] for key, value in event.items()}


@given(EVENTS)
def test_event_matches_the_pattern_of_its_values(event: Any) -> None:
    pattern = pattern_of(event)
    assert check(pattern, event)
    assert not check({**pattern, "more": ["x"]}, event)


@given(st.lists(st.text("ab/.", max_size=4), min_size=1, max_size=4), st.lists(st.text("ab/.", max_size=4), max_size=3))
def test_wildcard_matches_any_replacement_of_its_stars(pieces: list[str], fillers: list[str]) -> None:
    pieces = [pieces[0], *(piece or "a" for piece in pieces[1:])]
    value = pieces[0]
    for number, piece in enumerate(pieces[1:]):
        value += (fillers[number] if number < len(fillers) else "") + piece
    assert check({"a": [{"wildcard": "*".join(pieces)}]}, {"a": value})
