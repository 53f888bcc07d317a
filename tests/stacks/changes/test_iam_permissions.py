"""Comparison of patterns, conditions and sets of permissions."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stacks.changes.effects.iam_permissions import broadened, narrowed, permissions_of
from stacks.changes.effects.patterns import are_disjoint, pattern_covers

PATTERNS = st.text("ab*?", max_size=6)


@given(PATTERNS, PATTERNS, st.text("ab", max_size=6))
@example("a*b", "a*c", "ab")
@example("*", "", "")
def test_covering_pattern_matches_all_texts_of_the_covered_one(wide: str, narrow: str, text: str) -> None:
    if pattern_covers(wide, narrow) and fnmatchcase(text, narrow):
        assert fnmatchcase(text, wide)


@given(PATTERNS, st.text("ab", max_size=6))
def test_plain_text_is_covered_if_the_pattern_matches(wide: str, text: str) -> None:
    assert pattern_covers(wide, text) == fnmatchcase(text, wide)


@given(PATTERNS, PATTERNS, st.text("ab", max_size=6))
@example("a*", "*b", "ab")
def test_no_text_matches_two_disjoint_patterns(one: str, other: str, text: str) -> None:
    if fnmatchcase(text, one) and fnmatchcase(text, other):
        assert not are_disjoint(one, other)


def test_patterns_without_a_common_text_are_disjoint() -> None:
    assert are_disjoint("s3:get*", "iam:*") and are_disjoint("a?", "b*") and not are_disjoint("*${x}", "b")


def allow(**parts: Any) -> dict[str, Any]:
    return {"Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*", **parts}]}


CONDITIONS = [
    ({"StringEquals": {"k": "a"}}, {"StringEquals": {"k": ["a", "b"]}}, True),
    ({"StringEquals": {"k": ["a", "b"]}}, {"StringEquals": {"k": "a"}}, False),
    ({"StringEquals": {"K": "a"}}, {"stringequals": {"k": "a"}}, True),
    ({"StringNotEquals": {"k": ["a", "b"]}}, {"StringNotEquals": {"k": "a"}}, True),
    ({"StringNotEquals": {"k": "a"}}, {"StringNotEquals": {"k": ["a", "b"]}}, False),
    ({"ArnLike": {"k": "arn:x:1"}}, {"ArnLike": {"k": "arn:x:*"}}, True),
    ({"ArnLike": {"k": "arn:x:*"}}, {"ArnLike": {"k": "arn:x:1"}}, False),
    ({"StringEquals": {"k": "a"}}, {"StringLike": {"k": "*"}}, False),  # undecided: a reviewer must check
    ({"NumericLessThan": {"k": "1"}}, {"NumericLessThan": {"k": "2"}}, False),
    ({"StringEquals": {"k": "a"}, "Bool": {"s": "true"}}, {"Bool": {"s": "true"}}, True),
    ({"ForAllValues:StringEquals": {"k": "a"}}, {"ForAllValues:StringEquals": {"k": ["a", "b"]}}, False),
]


@pytest.mark.parametrize(("held", "asked", "is_implied"), CONDITIONS)
def test_condition_implies_another(held: Any, asked: Any, is_implied: bool) -> None:
    strict, loose = permissions_of(allow(Condition=held)), permissions_of(allow(Condition=asked))
    assert (not broadened(loose, strict)) == is_implied


def test_actions_ignore_case_and_resources_do_not() -> None:
    before = permissions_of(allow(Resource="arn:B"))
    assert not broadened(before, permissions_of(allow(Action="S3:getobject", Resource="arn:B")))
    assert broadened(before, permissions_of(allow(Resource="arn:b")))


def test_join_and_sub_of_the_same_reference_are_equal() -> None:
    one = permissions_of(allow(Resource={"Fn::Join": ["", [{"Fn::GetAtt": ["B", "Arn"]}, "/*"]]}))
    other = permissions_of(allow(Resource={"Fn::Sub": "${B.Arn}/*"}))
    assert not broadened(one, other) and not narrowed(one, other)


def test_list_is_covered_permission_by_permission() -> None:
    before = {"Statement": [*allow(Resource="a")["Statement"], *allow(Resource="b")["Statement"]]}
    after = allow(Resource=["b", "a"])
    assert not broadened(permissions_of(before), permissions_of(after))
    assert not narrowed(permissions_of(before), permissions_of(after))
