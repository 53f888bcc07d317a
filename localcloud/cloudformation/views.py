"""API representations of stacks, resources, events and change sets, in boto3's shapes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from localcloud.cloudformation.engine.stack import STACK_TYPE, ChangeSet, Configuration, Resource, Stack
from localcloud.cloudformation.errors import TemplateError
from localcloud.cloudformation.templates.intrinsics import Unknown

PAGE = 100
HIDDEN = "****"
# Fields that DescribeChangeSet returns for a change only with IncludePropertyValues.
VALUES = ("BeforeContext", "AfterContext")
TARGET_VALUES = ("Path", "BeforeValue", "AfterValue", "AttributeChangeType")


def stack_view(stack: Stack) -> dict[str, Any]:
    """Return a stack as DescribeStacks shows it. The stack's lock ensures that each returned status has an event."""
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
        "NotificationARNs": [],
        "RollbackConfiguration": {},
        "Tags": pairs(configuration.tags),
        "DriftInformation": _drift(stack),
    }
    alive = {
        "EnableTerminationProtection": stack.termination_protection,
        "ChangeSetId": None if "ROLLBACK" in stack.status else stack.change_set_id,
        "StackStatusReason": stack.reason,
    }
    optional = {
        "Capabilities": list(configuration.capabilities) or None,
        "Parameters": parameter_views(configuration) or None,
        "Outputs": stack.outputs or None,
        "DeploymentConfig": stack.deployment_config or None,
        "LastOperations": stack.operations[:2] or None,
        "Description": configuration.template.get("Description"),
        "RoleARN": stack.role_arn,
        "LastUpdatedTime": stack.updated,
        "DeletionTime": stack.deleted,
        **({} if stack.status == "DELETE_COMPLETE" else alive),
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
    drifted = any(found.is_drifted for found in stack.drift.values())
    return {"StackDriftStatus": "DRIFTED" if drifted else "IN_SYNC", "LastCheckTimestamp": stack.drift_checked}


def drift_status(stack: Stack, resource: Resource) -> str:
    """Return the result of a resource's last drift detection."""
    found = stack.drift.get(resource.logical_id)
    return "NOT_CHECKED" if found is None else found.status


def pairs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as a list of {Key, Value}."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def parameter_views(configuration: Configuration) -> list[dict[str, str]]:
    """Return the parameters, with NoEcho values masked and Parameter Store references resolved."""
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
    """Return a resource and its stack as DescribeStackResources shows them."""
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
    shown = {name: value for name, value in event.items() if name != "StackName"}
    if "OperationId" in event:
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
        "Capabilities": list(configuration.capabilities),
        "IncludeNestedStacks": False,
    }
    optional = {
        "DeploymentConfig": change_set.deployment_config or None,
        "Tags": pairs(configuration.tags) or None,
        "Parameters": parameter_views(configuration) or None,
        "Description": change_set.description,
        "StatusReason": change_set.reason,
        "OnStackFailure": change_set.on_failure,
    }
    return view | {name: value for name, value in optional.items() if value is not None}


def change_views(stack: Stack, change_set: ChangeSet, *, with_values: bool) -> list[dict[str, Any]]:
    """Return a change set's changes, with the old and new values of NoEcho parameters masked."""
    secrets = {
        str(configuration.parameters[name])
        for configuration in (stack.configuration, change_set.configuration)
        for name in configuration.hidden_parameters & configuration.parameters.keys()
    }
    return [
        {"Type": change["Type"], "ResourceChange": _masked(change["ResourceChange"], secrets - {""}, with_values)}
        for change in change_set.changes
        if not (with_values and _is_only_possible(change["ResourceChange"]))
    ]


def _is_only_possible(change: Mapping[str, Any]) -> bool:
    """Return True if a resource changes only when the values that it references change."""
    return bool(change["Details"]) and all(map(_is_possible, change["Details"]))


def _is_possible(detail: Mapping[str, Any]) -> bool:
    return "CausingEntity" in detail and "Path" not in detail["Target"]


def _masked(change: Mapping[str, Any], secrets: set[str], with_values: bool) -> dict[str, Any]:
    shown = {name: value for name, value in change.items() if with_values or name not in VALUES}
    details = []
    for detail in change["Details"]:
        is_unknown = str(Unknown("")) in detail["Target"].get("AfterValue", "")
        if (is_unknown and "CausingEntity" not in detail) if not with_values else _is_possible(detail):
            continue
        target = {n: v for n, v in detail["Target"].items() if with_values or n not in TARGET_VALUES}
        details.append({**detail, "Target": target})
    shown["Details"] = details
    if not with_values:
        return shown
    written = json.dumps(shown)
    for secret in secrets:
        # Contexts are JSON within JSON, so a secret may be escaped once or twice.
        for form in (json.dumps(json.dumps(secret)[1:-1])[1:-1], json.dumps(secret)[1:-1]):
            written = written.replace(form, HIDDEN)
    masked: dict[str, Any] = json.loads(written)
    return masked


def page(items: list[Any], token: str | None, size: int = PAGE) -> tuple[list[Any], dict[str, str]]:
    """Return a page of a list, plus NextToken if there are more items.

    Raises:
        TemplateError: The token was not returned with an earlier page.
    """
    if token is not None and not token.isdigit():
        raise TemplateError(f"NextToken {token} is not valid")
    start = int(token or 0)
    rest = {"NextToken": str(start + size)} if start + size < len(items) else {}
    return items[start : start + size], rest
