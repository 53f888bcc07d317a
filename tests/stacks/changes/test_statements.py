"""Whether one pattern, one condition, one set of rights allows all that another does."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stacks.changes.statements import broadened, narrowed, pattern_covers, rights_of

PATTERNS = st.text("ab*?", max_size=6)


@given(PATTERNS, PATTERNS, st.text("ab", max_size=6))
@example("a*b", "a*c", "ab")
@example("*", "", "")
def test_what_fits_a_covered_pattern_fits_the_one_that_covers_it(wide: str, narrow: str, text: str) -> None:
    if pattern_covers(wide, narrow) and fnmatchcase(text, narrow):
        assert fnmatchcase(text, wide)


@given(PATTERNS, st.text("ab", max_size=6))
def test_a_text_is_covered_when_it_fits(wide: str, text: str) -> None:
    assert pattern_covers(wide, text) == fnmatchcase(text, wide)


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
    ({"StringEquals": {"k": "a"}}, {"StringLike": {"k": "*"}}, False),  # not known to hold: a reviewer looks
    ({"NumericLessThan": {"k": "1"}}, {"NumericLessThan": {"k": "2"}}, False),
    ({"StringEquals": {"k": "a"}, "Bool": {"s": "true"}}, {"Bool": {"s": "true"}}, True),
    ({"ForAllValues:StringEquals": {"k": "a"}}, {"ForAllValues:StringEquals": {"k": ["a", "b"]}}, False),
]


@pytest.mark.parametrize(("held", "asked", "is_known_to_hold"), CONDITIONS)
def test_a_condition_that_holds_makes_another_hold(held: Any, asked: Any, is_known_to_hold: bool) -> None:
    strict, loose = rights_of(allow(Condition=held)), rights_of(allow(Condition=asked))
    assert (not broadened(loose, strict)) == is_known_to_hold


def test_actions_know_no_case_and_resources_do() -> None:
    before = rights_of(allow(Resource="arn:B"))
    assert not broadened(before, rights_of(allow(Action="S3:getobject", Resource="arn:B")))
    assert broadened(before, rights_of(allow(Resource="arn:b")))


def test_a_reference_is_the_same_however_it_is_written() -> None:
    one = rights_of(allow(Resource={"Fn::Join": ["", [{"Fn::GetAtt": ["B", "Arn"]}, "/*"]]}))
    other = rights_of(allow(Resource={"Fn::Sub": "${B.Arn}/*"}))
    assert not broadened(one, other) and not narrowed(one, other)


def test_a_list_of_rights_is_covered_right_by_right() -> None:
    before = {"Statement": [*allow(Resource="a")["Statement"], *allow(Resource="b")["Statement"]]}
    after = allow(Resource=["b", "a"])
    assert not broadened(rights_of(before), rights_of(after))
    assert not narrowed(rights_of(before), rights_of(after))
