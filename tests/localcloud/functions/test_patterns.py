"""Event patterns against AWS's documented examples, and properties of the matching."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcloud.functions.errors import InvalidPattern
from localcloud.functions.patterns import matches, parse_pattern

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


def test_a_pattern_of_the_documentation_matches_its_event() -> None:
    pattern = {"source": ["aws.ec2"], "detail-type": ["EC2 Instance State-change Notification"]}
    assert check({**pattern, "detail": {"state": ["terminated"]}}, INSTANCE_EVENT)
    assert not check({**pattern, "detail": {"state": ["running", "stopped"]}}, INSTANCE_EVENT)
    assert check({"resources": [{"suffix": "i-1234567890abcdef0"}]}, INSTANCE_EVENT)
    assert not check({"detail": {"nothing": ["terminated"]}}, INSTANCE_EVENT)


@pytest.mark.parametrize(
    ("matcher", "matching", "other"),
    [
        (["a", "b"], ["a", "b"], ["c", "A", None, 1]),
        ([None], [None], ["", "null", 0, False]),
        ([True], [True], [1, "true", False]),
        ([100], [100], [100.0, "100", 101, True]),
        ([{"prefix": "2017-10-02"}], ["2017-10-02T18:43:48Z", "2017-10-02"], ["2017-10-03", 2017]),
        ([{"prefix": {"equals-ignore-case": "EventB"}}], ["eventbridge", "EVENTBUS"], ["event"]),
        ([{"suffix": ".png"}], ["a.png"], ["a.PNG", "png"]),
        ([{"suffix": {"equals-ignore-case": ".png"}}], ["a.PNG"], ["a.jpg"]),
        ([{"equals-ignore-case": "alice"}], ["ALICE", "alice"], ["alicea"]),
        ([{"wildcard": "dir/*.png"}], ["dir/a.png", "dir/sub/b.png", "dir/.png"], ["a/dir/a.png", "dir/a.jpg"]),
        ([{"wildcard": "a\\*b"}], ["a*b"], ["axb"]),
        ([{"wildcard": "c:\\\\*"}], ["c:\\x"], ["c:x"]),
        ([{"anything-but": "initializing"}], ["running", 1, None], ["initializing"]),
        ([{"anything-but": ["stopped", "overloaded"]}], ["running"], ["stopped", "overloaded"]),
        ([{"anything-but": 123}], [124, "123"], [123]),
        ([{"anything-but": [100, 200]}], [150], [100, 200]),
        ([{"anything-but": {"prefix": "init"}}], ["running"], ["initializing"]),
        ([{"anything-but": {"prefix": ["init", "err"]}}], ["running"], ["initializing", "error"]),
        ([{"anything-but": {"suffix": ".txt"}}], ["a.png"], ["a.txt"]),
        ([{"anything-but": {"suffix": [".txt", ".rtf"]}}], ["a.png"], ["a.txt", "a.rtf"]),
        ([{"anything-but": {"equals-ignore-case": ["initializing", "stopped"]}}], ["running"], ["STOPPED"]),
        ([{"anything-but": {"wildcard": "*/lib/*"}}], ["a/bin/b"], ["a/lib/b"]),
        ([{"numeric": [">", 0, "<=", 5]}], [0.1, 5], [0, 5.1, "3", True]),
        ([{"numeric": ["<", 10]}], [-1, 9.99], [10]),
        ([{"numeric": ["=", 3.018e2]}], [301.8], [301.9]),
        ([{"cidr": "10.0.0.0/24"}], ["10.0.0.255"], ["10.0.1.0", "ten", "::1"]),
        ([{"cidr": "2001:db8::/32"}], ["2001:db8::1"], ["2001:db9::1"]),
        ([{"prefix": "x"}, {"numeric": [">", 5]}, "y"], ["xa", "y", 6], ["a", 5]),
    ],
)
def test_a_matcher_takes_its_values_and_no_others(matcher: Any, matching: list[Any], other: list[Any]) -> None:
    for value in matching:
        assert check({"detail": {"field": matcher}}, {"detail": {"field": value}}), value
        assert check({"detail": {"field": matcher}}, {"detail": {"field": [value]}}), value
    for value in other:
        assert not check({"detail": {"field": matcher}}, {"detail": {"field": value}}), value


def test_an_array_matches_through_any_of_its_elements() -> None:
    assert check({"resources": ["b", "z"]}, {"resources": ["a", "b"]})
    assert not check({"resources": ["c"]}, {"resources": ["a", "b"]})


def test_fields_of_an_object_in_an_array_match_within_one_element() -> None:
    event = {"employees": [{"name": "ann", "role": "dev"}, {"name": "bob", "role": "ops"}]}
    assert check({"employees": {"name": ["ann"], "role": ["dev"]}}, event)
    assert not check({"employees": {"name": ["ann"], "role": ["ops"]}}, event)


@pytest.mark.parametrize(
    ("detail", "exists", "absent"),
    [({"state": "x"}, True, False), ({"state": None}, True, False), ({}, False, True), ({"state": []}, False, True)],
)
def test_exists_looks_at_leaves(detail: Any, exists: bool, absent: bool) -> None:
    assert check({"detail": {"state": [{"exists": True}]}}, {"detail": detail}) is exists
    assert check({"detail": {"state": [{"exists": False}]}}, {"detail": detail}) is absent


def test_absence_matches_below_an_absent_parent() -> None:
    assert check({"detail": {"a": {"b": [{"exists": False}]}}}, {"detail": {}})
    assert not check({"detail": {"a": {"b": ["x"]}}}, {"detail": {}})


def test_or_matches_through_any_branch_beside_the_other_fields() -> None:
    pattern = {
        "source": ["aws.s3"],
        "detail": {"$or": [{"size": [{"numeric": [">", 10]}]}, {"key": [{"prefix": "x"}]}, {"kind": {"a": ["b"]}}]},
    }
    assert check(pattern, {"source": "aws.s3", "detail": {"size": 11}})
    assert check(pattern, {"source": "aws.s3", "detail": {"key": "xy", "size": 1}})
    assert check(pattern, {"source": "aws.s3", "detail": {"kind": {"a": "b"}}})
    assert not check(pattern, {"source": "aws.s3", "detail": {"key": "y", "size": 1}})
    assert not check(pattern, {"source": "aws.ec2", "detail": {"size": 11}})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "not empty"),
        ('{"source": "aws.ec2"}', "source: .*must be an object or an array"),
        ('{"source": []}', "empty array"),
        ('{"detail": {}}', "empty object"),
        ('{"source": [["a"]]}', "array inside an array"),
        ('{"source": [{"begins": "a"}]}', "unrecognized match type begins"),
        ('{"source": [{"prefix": "a", "suffix": "b"}]}', "exactly one operator"),
        ('{"source": [{"prefix": 1}]}', "prefix takes a string"),
        ('{"a": [{"numeric": [">"]}]}', "pairs"),
        ('{"a": [{"numeric": ["!=", 1]}]}', "operator !="),
        ('{"a": [{"numeric": [">", "1"]}]}', "must be a number"),
        ('{"a": [{"numeric": [">", 6e9]}]}', "between"),
        ('{"a": [{"numeric": [">", 5, "<", 1]}]}', "greater upper bound"),
        ('{"a": [{"exists": "yes"}]}', "exists takes true or false"),
        ('{"a": [{"wildcard": "a**b"}]}', "consecutive"),
        ('{"a": [{"wildcard": "a\\\\b"}]}', "backslash"),
        ('{"a": [{"cidr": "10.0.0.0/99"}]}', "address block"),
        ('{"a": [{"anything-but": ["a", 1]}]}', "strings only or numbers only"),
        ('{"a": [{"anything-but": {"numeric": [">", 1]}}]}', "anything-but takes"),
        ('{"$or": [{"a": ["b"]}]}', "two objects or more"),
    ],
)
def test_a_bad_pattern_is_refused_with_path_and_rule(text: str, words: str) -> None:
    with pytest.raises(InvalidPattern, match=words):
        parse_pattern(text)


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
def test_an_event_matches_the_pattern_made_of_its_own_values(event: Any) -> None:
    pattern = pattern_of(event)
    assert check(pattern, event)
    assert not check({**pattern, "more": ["x"]}, event)
    assert check({**pattern, "more": [{"exists": False}]}, event)


@given(st.lists(st.text("ab/.", max_size=4), min_size=1, max_size=4), st.lists(st.text("ab/.", max_size=4), max_size=3))
def test_a_wildcard_matches_whatever_its_stars_are_replaced_by(pieces: list[str], fillers: list[str]) -> None:
    pieces = [pieces[0], *(piece or "a" for piece in pieces[1:])]
    value = pieces[0]
    for number, piece in enumerate(pieces[1:]):
        value += (fillers[number] if number < len(fillers) else "") + piece
    assert check({"a": [{"wildcard": "*".join(pieces)}]}, {"a": value})


@given(LEAVES, LEAVES)
def test_anything_but_is_the_opposite_of_the_exact_match(excluded: Any, value: Any) -> None:
    if isinstance(excluded, (str, int)) and not isinstance(excluded, bool):
        event = {"a": value}
        assert check({"a": [excluded]}, event) is not check({"a": [{"anything-but": [excluded]}]}, event)
