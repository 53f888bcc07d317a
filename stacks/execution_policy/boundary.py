"""The permissions boundary for CloudFormation's execution role. It limits policies that are attached later."""

from __future__ import annotations

from stacks.execution_policy.documents import MAX_CHARACTERS, Deployments, Document, size_characters
from stacks.execution_policy.scopes import FILE_SYSTEM_LINKS

NAME = "trainstack-execution-boundary"
"""The policy name in the runbook. The execution policy does not allow changes to a policy with this name."""


def execution_boundary(actions: list[str], deployments: Deployments) -> Document:
    """Return the boundary. It covers the services in the policy but does not allow privilege escalation."""
    arn = f"arn:{deployments.partition}:iam::*:"
    services = sorted({action.split(":")[0] for action in actions})
    document: Document = {
        "Version": "2012-10-17",
        "Statement": [
            {"Sid": "Services", "Effect": "Allow", "Action": [f"{one}:*" for one in services], "Resource": "*"},
            {
                "Sid": "NoUsers",
                "Effect": "Deny",
                "Action": [
                    *("iam:*AccessKey*", "iam:*AccountAlias*", "iam:*AccountPasswordPolicy", "iam:*Group*"),
                    *("iam:*LoginProfile", "iam:*MFADevice*", "iam:*SAMLProvider*", "iam:*ServerCertificate*"),
                    *("iam:*SSHPublicKey*", "iam:*SigningCertificate*", "iam:*User*"),
                ],
                "Resource": "*",
            },
            {
                "Sid": "NoRoleWithoutBoundary",
                "Effect": "Deny",
                "Action": [
                    *("iam:AttachRolePolicy", "iam:CreateRole", "iam:PutRolePermissionsBoundary", "iam:PutRolePolicy"),
                ],
                # Only the service can change a service-linked role, so these roles cannot have a boundary.
                "NotResource": [f"{arn}role/aws-service-role/{FILE_SYSTEM_LINKS}/*"],
                "Condition": {"ArnNotLike": {"iam:PermissionsBoundary": list(deployments.boundaries)}},
            },
            {
                "Sid": "NoBoundaryRemoval",
                "Effect": "Deny",
                "Action": ["iam:DeleteRolePermissionsBoundary"],
                "Resource": "*",
            },
            {
                "Sid": "NoSelfModification",
                "Effect": "Deny",
                "Action": ["iam:*"],
                "Resource": [f"{arn}role/cdk-*", f"{arn}policy/trainstack-execution-*"],
            },
        ],
    }
    assert size_characters(document) <= MAX_CHARACTERS, "must fit in one document"
    return document
