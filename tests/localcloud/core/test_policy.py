"""IAM policy evaluation: statements, conditions and principals."""

from __future__ import annotations

import pytest

from localcloud.api import Principal
from localcloud.iam.conditions import UnknownOperator, arn_match, conditions_hold, wildcard_match
from localcloud.iam.policy import Access, verdict

ROLE = Principal(
    "arn:aws:sts::123456789012:assumed-role/node/i-1", "123456789012", "role", "arn:aws:iam::123456789012:role/node"
)


def document(effect: str = "Allow", **statement: object) -> dict[str, object]:
    return {"Version": "2012-10-17", "Statement": [{"Effect": effect, **statement}]}


@pytest.mark.parametrize(
    ("statement", "action", "resource", "expected"),
    [
        ({"Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/x/*"}, "s3:GetObject", "arn:aws:s3:::b/x/1", "allow"),
        ({"Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/x/*"}, "s3:GetObject", "arn:aws:s3:::b/y", "silent"),
        ({"Action": "s3:Get*", "Resource": "*"}, "s3:PutObject", "arn:aws:s3:::b/y", "silent"),
        ({"Action": "S3:getobject", "Resource": "*"}, "s3:GetObject", "arn:aws:s3:::b/y", "allow"),
        ({"NotAction": "iam:*", "Resource": "*"}, "s3:GetObject", "arn:aws:s3:::b", "allow"),
        ({"NotAction": "s3:*", "Resource": "*"}, "s3:GetObject", "arn:aws:s3:::b", "silent"),
        ({"Action": "*", "NotResource": "arn:aws:s3:::b"}, "s3:ListBucket", "arn:aws:s3:::b", "silent"),
        ({"Action": "s3:?etObject", "Resource": "*"}, "s3:GetObject", "arn:aws:s3:::b", "allow"),
    ],
)
def test_statement(statement: dict[str, object], action: str, resource: str, expected: str) -> None:
    assert verdict([document(**statement)], Access(action, resource, {}), {}, None) == expected


def test_explicit_deny_wins_over_any_allow() -> None:
    allow = document(Action="*", Resource="*")
    deny = document("Deny", Action="s3:DeleteObject", Resource="*")
    assert verdict([allow, deny], Access("s3:DeleteObject", "arn:aws:s3:::b/k", {}), {}, None) == "deny"
    assert verdict([deny, allow], Access("s3:GetObject", "arn:aws:s3:::b/k", {}), {}, None) == "allow"


@pytest.mark.parametrize(
    ("principal", "expected"),
    [
        ({"AWS": ROLE.role_arn}, "allow"),
        ({"AWS": ROLE.arn}, "allow"),
        ({"AWS": "arn:aws:iam::123456789012:root"}, "delegated"),
        ({"AWS": "123456789012"}, "delegated"),
        ({"AWS": "arn:aws:iam::123456789012:role/other"}, "silent"),
        ({"AWS": "arn:aws:iam::999999999999:root"}, "silent"),
        ("*", "allow"),
        ({"Service": "ec2.amazonaws.com"}, "silent"),
    ],
)
def test_resource_policy_principal(principal: object, expected: str) -> None:
    policy = document(Action="sts:AssumeRole", Principal=principal)
    assert verdict([policy], Access("sts:AssumeRole", "r", {}), {}, ROLE) == expected


@pytest.mark.parametrize(
    ("principal", "expected"),
    [({"AWS": ROLE.role_arn}, "silent"), ({"AWS": "arn:aws:iam::123456789012:role/other"}, "deny")],
)
def test_not_principal_excludes_the_named_principals(principal: object, expected: str) -> None:
    policy = document("Deny", Action="sts:AssumeRole", NotPrincipal=principal)
    assert verdict([policy], Access("sts:AssumeRole", "r", {}), {}, ROLE) == expected


def test_trust_policy_of_a_service() -> None:
    policy = document(Action="sts:AssumeRole", Principal={"Service": "ec2.amazonaws.com"})
    access = Access("sts:AssumeRole", "r", {})
    assert verdict([policy], access, {}, Principal("ec2.amazonaws.com", "1", "service")) == "allow"
    assert verdict([policy], access, {}, Principal("lambda.amazonaws.com", "1", "service")) == "silent"


@pytest.mark.parametrize(
    ("condition", "context", "expected"),
    [
        ({"StringEquals": {"s3:prefix": "x/"}}, {"s3:prefix": ["x/"]}, True),
        ({"StringEquals": {"s3:prefix": ["x/", "y/"]}}, {"s3:prefix": ["y/"]}, True),
        ({"StringEquals": {"s3:prefix": "x/"}}, {}, False),
        ({"StringEqualsIfExists": {"s3:prefix": "x/"}}, {}, True),
        ({"StringNotEquals": {"s3:prefix": "x/"}}, {}, True),
        ({"StringNotEquals": {"s3:prefix": ["x/", "y/"]}}, {"s3:prefix": ["y/"]}, False),
        ({"StringLike": {"s3:prefix": "runs/*"}}, {"s3:prefix": ["runs/a/b"]}, True),
        ({"StringLike": {"s3:prefix": "runs/*"}}, {"s3:prefix": ["nodes/a"]}, False),
        ({"Bool": {"aws:SecureTransport": False}}, {"aws:securetransport": ["true"]}, False),
        ({"Bool": {"aws:SecureTransport": "true"}}, {"aws:securetransport": ["true"]}, True),
        ({"Null": {"aws:RequestTag/x": "true"}}, {}, True),
        ({"Null": {"aws:RequestTag/x": "true"}}, {"aws:requesttag/x": ["1"]}, False),
        ({"Null": {"s3:if-none-match": "false"}}, {"s3:if-none-match": ["*"]}, True),
        ({"Null": {"s3:if-none-match": "false"}}, {}, False),
        ({"NumericLessThan": {"s3:max-keys": "10"}}, {"s3:max-keys": ["9"]}, True),
        ({"NumericLessThan": {"s3:max-keys": "10"}}, {"s3:max-keys": ["10"]}, False),
        ({"IpAddress": {"aws:SourceIp": "127.0.0.0/8"}}, {"aws:sourceip": ["127.0.0.1"]}, True),
        ({"NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}}, {"aws:sourceip": ["127.0.0.1"]}, True),
        ({"DateGreaterThan": {"aws:CurrentTime": "2020-01-01T00:00:00Z"}}, {"aws:currenttime": ["2026-01-01"]}, True),
        ({"ArnLike": {"aws:SourceArn": "arn:aws:s3:::b*"}}, {"aws:sourcearn": ["arn:aws:s3:::bucket"]}, True),
        ({"ForAllValues:StringEquals": {"aws:TagKeys": ["a", "b"]}}, {"aws:tagkeys": ["a"]}, True),
        ({"ForAllValues:StringEquals": {"aws:TagKeys": ["a"]}}, {"aws:tagkeys": ["a", "c"]}, False),
        ({"ForAnyValue:StringEquals": {"aws:TagKeys": ["a"]}}, {"aws:tagkeys": ["a", "c"]}, True),
        ({"ForAnyValue:StringEquals": {"aws:TagKeys": ["a"]}}, {}, False),
        ({"StringEquals": {"a:x": "1", "a:y": "2"}}, {"a:x": ["1"], "a:y": ["3"]}, False),
    ],
)
def test_condition(condition: dict[str, dict[str, object]], context: dict[str, list[str]], expected: bool) -> None:
    assert conditions_hold(condition, context) is expected


def test_unknown_condition_operator_is_an_error() -> None:
    with pytest.raises(UnknownOperator, match="StringSounds"):
        conditions_hold({"StringSounds": {"a:x": "1"}}, {"a:x": ["1"]})


def test_policy_variables_are_replaced_and_unknown_ones_match_nothing() -> None:
    policy = document(Action="s3:GetObject", Resource="arn:aws:s3:::b/${aws:PrincipalTag/team}/*")
    access = Access("s3:GetObject", "arn:aws:s3:::b/red/1", {})
    assert verdict([policy], access, {"aws:principaltag/team": ["red"]}, None) == "allow"
    assert verdict([policy], access, {"aws:principaltag/team": ["blue"]}, None) == "silent"
    assert verdict([policy], access, {}, None) == "silent"


def test_brackets_are_literal_in_patterns() -> None:
    assert wildcard_match("a[b]*", "a[b]c")
    assert not wildcard_match("a[b]*", "abc")


def test_arn_wildcards_do_not_match_the_first_colons() -> None:
    assert arn_match("arn:aws:s3:::*", "arn:aws:s3:::b/x:y")
    assert not arn_match("arn:aws:*:b", "arn:aws:s3:::b")


def test_user_id_of_an_instance_is_one_segment_of_a_key() -> None:
    """A role on an instance has aws:userid `role-id:ec2-instance-id`.

    Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html (2026-11).
    """
    policy = document(Action="s3:PutObject", Resource="arn:aws:s3:::b/nodes/${aws:userid}/*")
    context = {"aws:userid": ["AROA123:i-1"]}

    def found(key: str) -> str:
        return verdict([policy], Access("s3:PutObject", f"arn:aws:s3:::b/{key}", {}), context, None)

    assert found("nodes/AROA123:i-1/shim.log") == "allow"
    assert found("nodes/AROA123:i-2/shim.log") == "silent"
    assert found("nodes/i-1/shim.log") == "silent"
