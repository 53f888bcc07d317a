"""Responses that describe executions, in the shapes of botocore's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from localcloud.api import ApiError
from localcloud.functions.states.model import UNSUCCESSFUL, Execution, MapRun, text_of

PAGE = 100
HISTORY_PAGE = 1000


def described(execution: Execution) -> dict[str, Any]:
    """Return the response of DescribeExecution."""
    is_redrivable = execution.status in UNSUCCESSFUL and execution.parent is None
    return _present(
        executionArn=execution.arn,
        stateMachineArn=execution.machine.arn,
        name=execution.name,
        status=execution.status,
        startDate=_date(execution.started),
        stopDate=_date(execution.stopped),
        input=text_of(execution.input),
        output=None if execution.status != "SUCCEEDED" else text_of(execution.output),
        error=execution.error,
        cause=execution.cause,
        mapRunArn=None if execution.parent is None else execution.parent.arn,
        redriveCount=execution.redrives,
        redriveDate=_date(execution.redriven),
        redriveStatus="REDRIVABLE" if is_redrivable else "NOT_REDRIVABLE",
    )


def listed(executions: Sequence[Execution], limit: int | None, token: str | None) -> dict[str, Any]:
    """Return one page of the response of ListExecutions."""
    size, start = limit or PAGE, _offset(token)
    page = [
        _present(
            executionArn=each.arn,
            stateMachineArn=each.machine.arn,
            name=each.name,
            status=each.status,
            startDate=_date(each.started),
            stopDate=_date(each.stopped),
            mapRunArn=None if each.parent is None else each.parent.arn,
            itemCount=None,
            redriveCount=each.redrives,
            redriveDate=_date(each.redriven),
        )
        for each in executions[start : start + size]
    ]
    more = {"nextToken": str(start + size)} if start + size < len(executions) else {}
    return {"executions": page, **more}


def event_page(execution: Execution, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return one page of the response of GetExecutionHistory."""
    events = execution.history[::-1] if parameters.get("reverseOrder") else execution.history
    size, start = parameters.get("maxResults") or HISTORY_PAGE, _offset(parameters.get("nextToken"))
    more = {"nextToken": str(start + size)} if start + size < len(events) else {}
    return {"events": list(events[start : start + size]), **more}


def described_run(run: MapRun) -> dict[str, Any]:
    """Return the response of DescribeMapRun."""
    counts = run.counts()
    return _present(
        mapRunArn=run.arn,
        executionArn=run.parent.arn,
        status=run.status,
        startDate=_date(run.started),
        stopDate=_date(run.stopped),
        maxConcurrency=run.concurrency,
        toleratedFailurePercentage=0.0,
        toleratedFailureCount=0,
        itemCounts=counts,
        executionCounts=counts,
        redriveCount=run.redrives,
    )


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _date(unix_seconds: float | None) -> datetime | None:
    return None if unix_seconds is None else datetime.fromtimestamp(unix_seconds, UTC)


def _offset(token: str | None) -> int:
    if token is None:
        return 0
    if not token.isdecimal():
        raise ApiError("InvalidToken", f"Invalid Token: '{token}'")
    return int(token)
