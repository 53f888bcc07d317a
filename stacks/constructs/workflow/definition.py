"""The definition of a pipeline's state machine, in the Amazon States Language.

Each step has a Map state, which starts its members, and a Task state, which chooses the member for the next step. A
distributed Map gives each member an execution with its own history, because a history can have at most 25,000 events.

Sources (2026-11): https://states-language.net/spec.html,
https://docs.aws.amazon.com/step-functions/latest/dg/state-map-distributed.html and
https://docs.aws.amazon.com/step-functions/latest/dg/service-quotas.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stacks.config.pipeline.steps import Step

HEARTBEAT_SECONDS = 900
"""Time without a heartbeat after which a member is started again. The function sends one every minute."""
BUSY_SECONDS = 60
BUSY_ATTEMPTS = 2880
"""A member waits up to two days for a slot that another execution occupies. Each attempt adds at most five events."""
_SERVICE_ERRORS = [
    *("Lambda.ServiceException", "Lambda.AWSLambdaException", "Lambda.SdkClientException"),
    *("Lambda.TooManyRequestsException", "Lambda.ClientExecutionTimeoutException"),
]
"""Errors after which a function's task should be retried. Source (2026-11):
https://docs.aws.amazon.com/step-functions/latest/dg/sfn-best-practices.html"""


@dataclass(frozen=True)
class Items:
    """The S3 object with a step's members, and their number."""

    bucket: str
    key: str
    count: int


def definition(
    steps: Sequence[Step], items: Mapping[str, Items], fleets: Mapping[str, Sequence[str]], function_name: str
) -> dict[str, Any]:
    """Return the definition.

    Args:
        steps: The steps in order.
        items: The members of each step.
        fleets: The fleets in which the members of each step run.
        function_name: Name or ARN of the function that starts members.
    """
    states: dict[str, Any] = {}
    for index, step in enumerate(steps):
        follower = steps[index + 1] if index + 1 < len(steps) else None
        states |= _condition(step)
        states |= _step(step, items[step.name], fleets[step.name], function_name, _entry(follower))
    states["done"] = {"Type": "Succeed"}
    first = _entry(steps[0])
    return {"Comment": f"Pipeline: {', '.join(step.name for step in steps)}", "StartAt": first, "States": states}


def _entry(step: Step | None) -> str:
    """Return the name of a step's first state."""
    if step is None:
        return "done"
    return step.name if step.condition is None else f"{step.name}: when"


def _condition(step: Step) -> dict[str, Any]:
    if step.condition is None:
        return {}
    rule = {
        "Variable": f"$.metrics.{step.condition.metric}",
        step.condition.comparison: step.condition.number,
        "Next": step.name,
    }
    return {f"{step.name}: when": {"Type": "Choice", "Choices": [rule], "Default": "done"}}


def _step(step: Step, items: Items, fleets: Sequence[str], function_name: str, follower: str) -> dict[str, Any]:
    selector = {"item.$": "$$.Map.Item.Value", "input.$": "$", "execution.$": "$$.Execution.Name"}
    payload = {
        "action": "collect",
        "step": step.name,
        "kind": step.config.kind,
        "members": items.count,
        "keep": step.config.kept_metric,
        "execution.$": "$$.Execution.Name",
        "input.$": "$",
    }
    return {
        step.name: {
            "Type": "Map",
            "Label": step.name,
            "ItemReader": {
                "Resource": "arn:aws:states:::s3:getObject",
                "ReaderConfig": {"InputType": "JSON"},
                "Parameters": {"Bucket": items.bucket, "Key": items.key},
            },
            "ItemSelector": selector,
            "MaxConcurrency": step.config.parallel,
            "ItemProcessor": {
                "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
                "StartAt": "run",
                "States": {"run": _member(step, fleets, function_name)},
            },
            # The function stores the results, because a state's data is limited to 256 KiB.
            "ResultPath": None,
            "Next": f"{step.name}: collect",
        },
        f"{step.name}: collect": {
            "Type": "Task",
            "Resource": "arn:aws:states:::lambda:invoke",
            "Parameters": {"FunctionName": function_name, "Payload": payload},
            "OutputPath": "$.Payload",
            "Retry": [_service_retry()],
            "Next": follower,
        },
    }


def _member(step: Step, fleets: Sequence[str], function_name: str) -> dict[str, Any]:
    payload = {
        "action": "start",
        "step": step.name,
        "fleets": list(fleets),
        "metrics": list(step.metrics),
        "token.$": "$$.Task.Token",
        "execution.$": "$.execution",
        "item.$": "$.item",
        "input.$": "$.input",
    }
    retries: list[dict[str, Any]] = [
        {"ErrorEquals": ["SlotsBusy"], "IntervalSeconds": BUSY_SECONDS, "BackoffRate": 1, "MaxAttempts": BUSY_ATTEMPTS},
        {"ErrorEquals": ["States.HeartbeatTimeout"], "IntervalSeconds": 1, "MaxAttempts": 3},
        _service_retry(),
    ]
    if step.config.retry:
        failed = {"ErrorEquals": ["RunFailed"], "IntervalSeconds": 60, "MaxAttempts": step.config.retry}
        retries.append(failed)
    hours = step.config.timeout_hours
    return {
        "Type": "Task",
        "Resource": "arn:aws:states:::lambda:invoke.waitForTaskToken",
        "Parameters": {"FunctionName": function_name, "Payload": payload},
        "HeartbeatSeconds": HEARTBEAT_SECONDS,
        **({} if hours is None else {"TimeoutSeconds": max(HEARTBEAT_SECONDS + 1, round(hours * 3600))}),
        "Retry": retries,
        "End": True,
    }


def _service_retry() -> dict[str, Any]:
    return {"ErrorEquals": _SERVICE_ERRORS, "IntervalSeconds": 2, "MaxAttempts": 6, "BackoffRate": 2}
