"""How stacks, resources, events and change sets look in boto3's shapes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from localcloud.cloudformation.drift_comparison import DRIFTED
from localcloud.cloudformation.errors import TemplateError
from localcloud.cloudformation.stack import STACK_TYPE, ChangeSet, Configuration, Resource, Stack

PAGE = 100
HIDDEN = "****"
# Of a change these are told only to who asks for property values.
VALUES = ("BeforeContext", "AfterContext")
TARGET_VALUES = ("Path", "BeforeValue", "AfterValue", "AttributeChangeType")


def stack_view(stack: Stack) -> dict[str, Any]:
    """Return a stack as DescribeStacks shows it; whoever is told a status finds its event too."""
    with stack.lock:
        return _stack_view(stack)


def _stack_view(stack: Stack) -> dict[str, Any]:
    configuration = stack.configuration
    view: dict[str, Any] = {
        "StackId": stack.stack_id,
        "StackName": stack.name,
        "StackStatus": stack.status,
        "CreationTime": stack.created,
        "DisableRollback": stack.disable_rollback,
        "EnableTerminationProtection": stack.termination_protection,
        "NotificationARNs": [],
        "RollbackConfiguration": {},
        "DeploymentConfig": stack.deployment_config,
        "Capabilities": list(configuration.capabilities),
        "Tags": pairs(configuration.tags),
        "Parameters": parameter_views(configuration),
        "Outputs": stack.outputs,
        "DriftInformation": _drift(stack),
        "LastOperations": stack.operations[:2],
    }
    optional = {
        "Description": configuration.template.get("Description"),
        "RoleARN": stack.role_arn,
        "StackStatusReason": stack.reason,
        "LastUpdatedTime": stack.updated,
        "DeletionTime": stack.deleted,
        "ChangeSetId": stack.change_set_id,
    }
    return view | {name: value for name, value in optional.items() if value is not None}


def summary_view(stack: Stack) -> dict[str, Any]:
    """Return a stack as ListStacks shows it."""
    view = stack_view(stack)
    names = ("StackId", "StackName", "CreationTime", "LastUpdatedTime", "DeletionTime", "StackStatus")
    more = ("StackStatusReason", "DriftInformation", "LastOperations")
    shown = {name: view[name] for name in (*names, *more) if name in view}
    return shown | ({"TemplateDescription": view["Description"]} if "Description" in view else {})


def _drift(stack: Stack) -> dict[str, Any]:
    if stack.drift_checked is None:
        return {"StackDriftStatus": "NOT_CHECKED"}
    drifted = any(found.status in DRIFTED for found in stack.drift.values())
    return {"StackDriftStatus": "DRIFTED" if drifted else "IN_SYNC", "LastCheckTimestamp": stack.drift_checked}


def drift_status(stack: Stack, resource: Resource) -> str:
    """Return what the last detection found at a resource."""
    found = stack.drift.get(resource.logical_id)
    return "NOT_CHECKED" if found is None else found.status


def pairs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as the API shows them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def parameter_views(configuration: Configuration) -> list[dict[str, str]]:
    """Return the parameters, hidden ones masked, with the value of those that name a Parameter Store entry."""
    views = []
    for name, raw in configuration.raw_parameters.items():
        if name in configuration.hidden_parameters:
            views.append({"ParameterKey": name, "ParameterValue": HIDDEN})
            continue
        view = {"ParameterKey": name, "ParameterValue": raw}
        if configuration.template["Parameters"][name]["Type"].startswith("AWS::SSM::Parameter::Value"):
            value = configuration.parameters[name]
            view["ResolvedValue"] = ",".join(value) if isinstance(value, list) else str(value)
        views.append(view)
    return views


def resource_view(stack: Stack, resource: Resource) -> dict[str, Any]:
    """Return a resource with its stack, as DescribeStackResources shows it."""
    view: dict[str, Any] = {
        "StackName": stack.name,
        "StackId": stack.stack_id,
        "LogicalResourceId": resource.logical_id,
        "ResourceType": resource.type_name,
        "ResourceStatus": resource.status,
        "Timestamp": resource.updated,
        "LastUpdatedTimestamp": resource.updated,
        "DriftInformation": {"StackResourceDriftStatus": drift_status(stack, resource)},
    }
    if resource.physical_id:
        view["PhysicalResourceId"] = resource.physical_id
    if resource.reason is not None:
        view["ResourceStatusReason"] = resource.reason
    return view


def operation_event(event: Mapping[str, Any], operations: list[dict[str, str]]) -> dict[str, Any]:
    """Return a stack event as DescribeEvents shows it."""
    kinds = {entry["OperationId"]: entry["OperationType"] for entry in operations}
    shown = {name: value for name, value in event.items() if name not in ("StackName", "OperationId")}
    if event["OperationId"]:
        shown["OperationId"] = event["OperationId"]
        shown["OperationType"] = kinds[event["OperationId"]]
    is_failure = event["ResourceType"] != STACK_TYPE and event["ResourceStatus"].endswith("_FAILED")
    return {**shown, "EventType": "PROVISIONING_ERROR" if is_failure else "STACK_EVENT"}


def change_set_view(stack: Stack, change_set: ChangeSet) -> dict[str, Any]:
    """Return a change set as DescribeChangeSet shows it, without its changes."""
    configuration = change_set.configuration
    view: dict[str, Any] = {
        "ChangeSetName": change_set.name,
        "ChangeSetId": change_set.change_set_id,
        "StackId": stack.stack_id,
        "StackName": stack.name,
        "CreationTime": change_set.created,
        "ExecutionStatus": change_set.execution_status,
        "Status": change_set.status,
        "NotificationARNs": [],
        "RollbackConfiguration": {},
        "DeploymentConfig": change_set.deployment_config,
        "Capabilities": list(configuration.capabilities),
        "Tags": pairs(configuration.tags),
        "Parameters": parameter_views(configuration),
        "IncludeNestedStacks": False,
    }
    optional = {
        "Description": change_set.description,
        "StatusReason": change_set.reason,
        "OnStackFailure": change_set.on_failure,
    }
    return view | {name: value for name, value in optional.items() if value is not None}


def change_views(stack: Stack, change_set: ChangeSet, *, with_values: bool) -> list[dict[str, Any]]:
    """Return the changes of a change set; values of hidden parameters, new and old, are masked."""
    secrets = {
        str(configuration.parameters[name])
        for configuration in (stack.configuration, change_set.configuration)
        for name in configuration.hidden_parameters & configuration.parameters.keys()
    }
    return [
        {"Type": change["Type"], "ResourceChange": _masked(change["ResourceChange"], secrets - {""}, with_values)}
        for change in change_set.changes
    ]


def _masked(change: Mapping[str, Any], secrets: set[str], with_values: bool) -> dict[str, Any]:
    shown = {name: value for name, value in change.items() if with_values or name not in VALUES}
    details = []
    for detail in change["Details"]:
        target = {n: v for n, v in detail["Target"].items() if with_values or n not in TARGET_VALUES}
        details.append({**detail, "Target": target})
    shown["Details"] = details
    if not with_values:
        return shown
    written = json.dumps(shown)
    for secret in secrets:
        # Contexts are JSON within JSON: the secret is escaped once or twice there.
        for form in (json.dumps(json.dumps(secret)[1:-1])[1:-1], json.dumps(secret)[1:-1]):
            written = written.replace(form, HIDDEN)
    masked: dict[str, Any] = json.loads(written)
    return masked


def page(items: list[Any], token: str | None, size: int = PAGE) -> tuple[list[Any], dict[str, str]]:
    """Return one page of a list and the NextToken entry for the rest.

    Raises:
        TemplateError: The token is none that a page before gave.
    """
    if token is not None and not token.isdigit():
        raise TemplateError(f"NextToken {token} is not valid")
    start = int(token or 0)
    rest = {"NextToken": str(start + size)} if start + size < len(items) else {}
    return items[start : start + size], rest
