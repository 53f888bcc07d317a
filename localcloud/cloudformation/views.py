"""How stacks, events and change sets look in boto3's shapes."""

from __future__ import annotations

from typing import Any

from localcloud.cloudformation.stack import ChangeSet, Resource, Stack

PAGE = 100


def stack_view(stack: Stack) -> dict[str, Any]:
    """Return a stack as DescribeStacks shows it."""
    hidden = {n for n, d in stack.template.get("Parameters", {}).items() if d.get("NoEcho")}
    view: dict[str, Any] = {
        "StackId": stack.stack_id,
        "StackName": stack.name,
        "StackStatus": stack.status,
        "CreationTime": stack.created,
        "DisableRollback": stack.disable_rollback,
        "EnableTerminationProtection": stack.termination_protection,
        "NotificationARNs": [],
        "Capabilities": stack.capabilities,
        "Tags": [{"Key": key, "Value": value} for key, value in stack.tags.items()],
        "Parameters": [
            {"ParameterKey": name, "ParameterValue": "****" if name in hidden else value}
            | ({"ResolvedValue": str(stack.parameters[name])} if str(stack.parameters.get(name)) != value else {})
            for name, value in stack.raw_parameters.items()
        ],
        "Outputs": stack.outputs,
        "DriftInformation": {"StackDriftStatus": "NOT_CHECKED"},
    }
    optional = {
        "Description": stack.description,
        "RoleARN": stack.role_arn,
        "StackStatusReason": stack.reason,
        "LastUpdatedTime": stack.updated,
        "DeletionTime": stack.deleted,
        "ChangeSetId": stack.change_set_id,
    }
    return view | {name: value for name, value in optional.items() if value is not None}


def resource_view(stack: Stack, resource: Resource) -> dict[str, Any]:
    """Return a resource with its stack, as DescribeStackResources shows it."""
    view: dict[str, Any] = {
        "StackName": stack.name,
        "StackId": stack.stack_id,
        "LogicalResourceId": resource.logical_id,
        "PhysicalResourceId": resource.physical_id,
        "ResourceType": resource.type_name,
        "ResourceStatus": resource.status,
        "Timestamp": resource.updated,
        "LastUpdatedTimestamp": resource.updated,
        "DriftInformation": {"StackResourceDriftStatus": "NOT_CHECKED"},
    }
    return view if resource.reason is None else {**view, "ResourceStatusReason": resource.reason}


def change_set_view(stack: Stack, change_set: ChangeSet) -> dict[str, Any]:
    """Return a change set as DescribeChangeSet shows it, without paging."""
    view: dict[str, Any] = {
        "ChangeSetName": change_set.name,
        "ChangeSetId": change_set.change_set_id,
        "StackId": stack.stack_id,
        "StackName": stack.name,
        "CreationTime": change_set.created,
        "ExecutionStatus": change_set.execution_status,
        "Status": change_set.status,
        "NotificationARNs": [],
        "Capabilities": change_set.capabilities,
        "Tags": [{"Key": key, "Value": value} for key, value in change_set.tags.items()],
        "Parameters": [
            {"ParameterKey": name, "ParameterValue": value} for name, value in change_set.raw_parameters.items()
        ],
        "Changes": change_set.changes,
        "IncludeNestedStacks": False,
    }
    optional = {
        "Description": change_set.description,
        "StatusReason": change_set.reason,
        "OnStackFailure": change_set.on_failure,
    }
    return view | {name: value for name, value in optional.items() if value is not None}


def page(items: list[Any], token: str | None, size: int = PAGE) -> tuple[list[Any], dict[str, str]]:
    """Return one page of a list and the NextToken entry for the rest."""
    start = int(token or 0)
    rest = {"NextToken": str(start + size)} if start + size < len(items) else {}
    return items[start : start + size], rest
