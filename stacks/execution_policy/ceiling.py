"""The ceiling over CloudFormation's execution role itself: what no policy attached to it later can add."""

from __future__ import annotations

from stacks.execution_policy.documents import Deployments, Document, size_characters

NAME = "trainstack-execution-boundary"
"""What the runbook calls it; outside of the names that the execution policy may change."""


def ceiling(actions: list[str], deployments: Deployments) -> Document:
    """Return the boundary: the services of the policy, less everything that makes a principal more than it is."""
    arn = f"arn:{deployments.partition}:iam::*:"
    services = sorted({action.split(":")[0] for action in actions})
    document: Document = {
        "Version": "2012-10-17",
        "Statement": [
            {"Sid": "Services", "Effect": "Allow", "Action": [f"{one}:*" for one in services], "Resource": "*"},
            {
                "Sid": "NoPeople",
                "Effect": "Deny",
                "Action": [
                    *("iam:*AccessKey*", "iam:*AccountAlias*", "iam:*AccountPasswordPolicy", "iam:*Group*"),
                    *("iam:*LoginProfile", "iam:*MFADevice*", "iam:*SAMLProvider*", "iam:*ServerCertificate*"),
                    *("iam:*SSHPublicKey*", "iam:*SigningCertificate*", "iam:*User*"),
                ],
                "Resource": "*",
            },
            {
                "Sid": "NoRoleWithoutCeiling",
                "Effect": "Deny",
                "Action": [
                    *("iam:AttachRolePolicy", "iam:CreateRole", "iam:PutRolePermissionsBoundary", "iam:PutRolePolicy"),
                ],
                "Resource": "*",
                "Condition": {"ArnNotLike": {"iam:PermissionsBoundary": list(deployments.ceilings)}},
            },
            {
                "Sid": "NoCeilingComesOff",
                "Effect": "Deny",
                "Action": ["iam:DeleteRolePermissionsBoundary"],
                "Resource": "*",
            },
            {
                "Sid": "NotItself",
                "Effect": "Deny",
                "Action": ["iam:*"],
                "Resource": [f"{arn}role/cdk-*", f"{arn}policy/trainstack-execution-*"],
            },
        ],
    }
    assert size_characters(document) <= 6144, "one document"
    return document
