"""Recognized changes to permission resources."""

from __future__ import annotations

from collections.abc import Mapping

from stacks.changes.approvals.known import TAGS, Known
from stacks.changes.approvals.rules import (
    found_elsewhere,
    in_new_resources,
    no_increase,
    passes,
)
from stacks.changes.effects.iam import INVOCATION

_POLICY = Known({"PolicyName": passes, "PolicyDocument": found_elsewhere, "Roles": found_elsewhere} | {
    "Users": found_elsewhere, "Groups": found_elsewhere, "RoleName": found_elsewhere, "UserName": found_elsewhere,
    "GroupName": found_elsewhere,
}, added="passes", removed="passes")  # fmt: skip
_CONNECTION = Known(TAGS, added="passes", removed="passes")
"""A type whose addition is reported as a network finding. A change to it needs approval."""

ACCESS: Mapping[str, Known] = {
    "AWS::IAM::Role": Known(
        {
            **TAGS,
            "Description": passes,
            "AssumeRolePolicyDocument": found_elsewhere,
            "ManagedPolicyArns": found_elsewhere,
            "PermissionsBoundary": found_elsewhere,
            "Policies": found_elsewhere,
            "MaxSessionDuration": no_increase,
        },
        added="passes",
        removed="passes",
    ),
    "AWS::IAM::ManagedPolicy": Known(
        {
            "Description": passes,
            "PolicyDocument": found_elsewhere,
            "Roles": found_elsewhere,
            "Users": found_elsewhere,
            "Groups": found_elsewhere,
            "ManagedPolicyName": in_new_resources(passes),
            "Path": in_new_resources(passes),
        },
        added="passes",
        removed="passes",
    ),
    **{f"AWS::IAM::{name}": _POLICY for name in ("Policy", "RolePolicy", "UserPolicy", "GroupPolicy")},
    **{f"AWS::IAM::{name}": _CONNECTION for name in ("User", "Group")},
    "AWS::IAM::InstanceProfile": Known(removed="passes"),
    "AWS::IAM::OIDCProvider": Known(TAGS, removed="passes"),
    "AWS::IAM::ServiceLinkedRole": Known({"AWSServiceName": found_elsewhere}, added="passes", removed="passes"),
    "AWS::Lambda::Permission": Known(
        dict.fromkeys(INVOCATION, found_elsewhere),
        added="passes",
        removed="passes",
    ),
    "AWS::S3::BucketPolicy": Known(
        {"PolicyDocument": found_elsewhere, "Bucket": in_new_resources(passes)}, added="passes", removed="passes"
    ),
    "AWS::SNS::TopicPolicy": Known(
        {"PolicyDocument": found_elsewhere, "Topics": in_new_resources(passes)}, added="passes", removed="passes"
    ),
}  # fmt: skip
