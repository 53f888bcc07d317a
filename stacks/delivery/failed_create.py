"""Disables termination protection on stacks whose creation failed, so that the next deploy can create them again.

The CDK CLI sets termination protection before it executes the change set that creates a stack. If the create fails, the
CLI's next deploy deletes the stack first, which CloudFormation rejects while the stack is protected
(https://github.com/aws/aws-cdk/issues/11687).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from stacks.errors import DeployError

# The CLI deletes stacks in these states before it creates them again. Source (2026-11):
# https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/view-stack-events.html
FAILED_STATES = ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED")
GONE = ("DELETE_COMPLETE", "DELETE_SKIPPED")
"""States of resources that remain after the stack is deleted."""


def end_protection(client: Any, stacks: Sequence[str]) -> list[str]:
    """Disable protection on stacks whose creation failed and that contain no resources. Return notes for the user.

    Args:
        client: A CloudFormation client with the deploy role's credentials.
        stacks: Names of the stacks that a deploy creates or changes. Stacks that do not exist are skipped.

    Raises:
        DeployError: A protected stack still contains resources, so deleting it could delete data.
    """
    notes, blocked = [], []
    for name in stacks:
        stack = describe(client, name)
        if stack is None or stack["StackStatus"] not in FAILED_STATES or not stack.get("EnableTerminationProtection"):
            continue
        created = resources(client, name)
        held = [one for one in created if one["ResourceStatus"] not in GONE]
        if held:
            names = ", ".join(f"{one['LogicalResourceId']} ({one['ResourceStatus']})" for one in held)
            blocked.append(
                f"{name}: {stack['StackStatus']}, but it still contains {names}; delete them or back them up, then run "
                f"`aws cloudformation update-termination-protection --no-enable-termination-protection "
                f"--stack-name {name}` and `aws cloudformation delete-stack --stack-name {name}`"
            )
            continue
        client.update_termination_protection(StackName=name, EnableTerminationProtection=False)
        notes.append(f"{name}: failed to create and is empty: termination protection is disabled until the deploy")
        # Source (2026-11): Retain also keeps a resource if the creation of its stack is rolled back. See
        # https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-deletionpolicy.html
        kept = [one["PhysicalResourceId"] for one in created if _is_kept_role(one)]
        if kept:
            remedy = (
                "deploy without the parameter ServiceLinkedRoles=create, because these roles cannot be created again"
            )
            notes.append(f"{name}: the failed creation left {', '.join(kept)} in the account: {remedy}")
    if blocked:
        raise DeployError("\n".join(blocked))
    return notes


def _is_kept_role(resource: Mapping[str, str]) -> bool:
    return resource["ResourceType"] == "AWS::IAM::ServiceLinkedRole" and resource["ResourceStatus"] == "DELETE_SKIPPED"


def describe(client: Any, name: str) -> dict[str, Any] | None:
    """Return a stack's description, or None if the stack does not exist."""
    try:
        found: list[dict[str, Any]] = client.describe_stacks(StackName=name)["Stacks"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ValidationError":  # the stack does not exist
            return None
        raise
    return found[0]


def resources(client: Any, name: str) -> list[dict[str, Any]]:
    """Return the summaries of a stack's resources, including deleted ones."""
    pages = client.get_paginator("list_stack_resources").paginate(StackName=name)
    return [one for page in pages for one in page["StackResourceSummaries"]]
