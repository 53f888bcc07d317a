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
        startDate=date(execution.started),
        stopDate=date(execution.stopped),
        input=text_of(execution.input),
        output=None if execution.status != "SUCCEEDED" else text_of(execution.output),
        error=execution.error,
        cause=execution.cause,
        mapRunArn=None if execution.parent is None else execution.parent.arn,
        redriveCount=execution.redrives,
        redriveDate=date(execution.redriven),
        redriveStatus="REDRIVABLE" if is_redrivable else "NOT_REDRIVABLE",
    )


def listed(executions: Sequence[Execution], limit: int | None, token: str | None) -> dict[str, Any]:
    """Return one page of the response of ListExecutions."""
    page = _page("executions", executions, limit or PAGE, token)
    found = [
        _present(
            executionArn=each.arn,
            stateMachineArn=each.machine.arn,
            name=each.name,
            status=each.status,
            startDate=date(each.started),
            stopDate=date(each.stopped),
            mapRunArn=None if each.parent is None else each.parent.arn,
            redriveCount=each.redrives,
            redriveDate=date(each.redriven),
        )
        for each in page["executions"]
    ]
    return {**page, "executions": found}


def event_page(execution: Execution, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return one page of the response of GetExecutionHistory."""
    events = execution.history[::-1] if parameters.get("reverseOrder") else execution.history
    return _page("events", events, parameters.get("maxResults") or HISTORY_PAGE, parameters.get("nextToken"))


def described_run(run: MapRun) -> dict[str, Any]:
    """Return the response of DescribeMapRun."""
    counts = run.counts()
    return _present(
        mapRunArn=run.arn,
        executionArn=run.parent.arn,
        status=run.status,
        startDate=date(run.started),
        stopDate=date(run.stopped),
        maxConcurrency=run.concurrency,
        toleratedFailurePercentage=0.0,
        toleratedFailureCount=0,
        itemCounts=counts,
        executionCounts=counts,
        redriveCount=run.redrives,
    )


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def date(unix_seconds: float | None) -> datetime | None:
    """Return a Unix time as the responses contain it."""
    return None if unix_seconds is None else datetime.fromtimestamp(unix_seconds, UTC)


def _page(name: str, values: Sequence[Any], size: int, token: str | None) -> dict[str, Any]:
    """Return one page of a response's list, with the token of the next page."""
    if token is not None and not token.isdecimal():
        raise ApiError("InvalidToken", f"Invalid Token: '{token}'")
    start = int(token or 0)
    more = {"nextToken": str(start + size)} if start + size < len(values) else {}
    return {name: list(values[start : start + size]), **more}
