"""Decodes state machine definitions, and rejects the parts of the Amazon States Language that are not emulated.

Sources (2026-11): https://states-language.net/spec.html and
https://docs.aws.amazon.com/step-functions/latest/dg/state-map-distributed.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from localcloud.functions.states.paths import PathError, check_path, check_template

_COMMON = {"Type", "Comment"}
_FLOW = {"Next", "End", "InputPath", "OutputPath"}
FIELDS: Mapping[str, frozenset[str]] = {
    "Pass": frozenset(_COMMON | _FLOW | {"Result", "Parameters", "ResultPath"}),
    "Task": frozenset(
        _COMMON
        | _FLOW
        | {"Resource", "Parameters", "ResultSelector", "ResultPath", "Retry", "TimeoutSeconds", "HeartbeatSeconds"}
    ),
    "Map": frozenset(
        _COMMON
        | _FLOW
        | {"ItemProcessor", "ItemReader", "ItemSelector", "MaxConcurrency", "Label", "ResultSelector", "ResultPath"}
    ),
    "Choice": frozenset(_COMMON | {"InputPath", "Choices", "Default"}),
    "Succeed": frozenset(_COMMON | {"InputPath", "OutputPath"}),
    "Fail": frozenset(_COMMON | {"Error", "Cause"}),
}
"""The emulated fields of each emulated state type."""
COMPARISONS = (
    *("NumericLessThan", "NumericLessThanEquals", "NumericGreaterThan", "NumericGreaterThanEquals"),
    *("NumericEquals", "BooleanEquals", "StringEquals", "IsPresent"),
)
INVOKE = "arn:aws:states:::lambda:invoke"
INVOKE_WITH_TOKEN = f"{INVOKE}.waitForTaskToken"
READ_OBJECT = "arn:aws:states:::s3:getObject"
RETRY_FIELDS = frozenset({"ErrorEquals", "IntervalSeconds", "MaxAttempts", "BackoffRate", "MaxDelaySeconds", "Comment"})


class InvalidDefinition(ValueError):
    """A definition is invalid, or uses a part of the language that is not emulated. The message lists all problems."""


def decode(text: str) -> dict[str, Any]:
    """Decode and check a definition.

    Raises:
        InvalidDefinition: See there.
    """
    try:
        definition = json.loads(text)
    except ValueError as error:
        raise InvalidDefinition(f"INVALID_JSON_DESCRIPTION: {error}") from error
    problems = list(_problems(definition, "/", is_top=True))
    if problems:
        raise InvalidDefinition(f"SCHEMA_VALIDATION_FAILED: {'; '.join(problems)}")
    assert isinstance(definition, dict)
    return definition


def _problems(machine: object, where: str, *, is_top: bool) -> Iterator[str]:
    if not isinstance(machine, Mapping) or not isinstance(machine.get("States"), Mapping):
        yield f"{where}: must be an object with States"
        return
    allowed = {"Comment", "StartAt", "States"} | ({"Version"} if is_top else {"ProcessorConfig"})
    yield from (f"{where}{name}: is not supported by the embedded cloud" for name in sorted(set(machine) - allowed))
    states = machine["States"]
    if machine.get("StartAt") not in states:
        yield f"{where}StartAt: {machine.get('StartAt')!r} is not a state"
    for name, state in states.items():
        yield from _state_problems(state, f"{where}States/{name}", states)


def _state_problems(state: Any, where: str, states: Mapping[str, Any]) -> Iterator[str]:
    kind = str(state.get("Type")) if isinstance(state, Mapping) else ""
    if kind not in FIELDS:
        yield f"{where}: type {kind!r} is not supported by the embedded cloud; supported: {', '.join(FIELDS)}"
        return
    for name in sorted(set(state) - FIELDS[kind]):
        yield f"{where}/{name}: is not supported by the embedded cloud"
    if kind in ("Pass", "Task", "Map"):
        if (state.get("End") is True) == ("Next" in state):
            yield f"{where}: must have either Next or End"
        if "Next" in state and state["Next"] not in states:
            yield f"{where}/Next: {state['Next']!r} is not a state"
    try:
        for field in ("InputPath", "OutputPath", "ResultPath"):
            if state.get(field) is not None:
                check_path(state[field])
        for field in ("Parameters", "ResultSelector", "ItemSelector"):
            check_template(state.get(field))
    except PathError as error:
        yield f"{where}: {error}"
    checks: Mapping[str, Callable[[Mapping[str, Any], str, Mapping[str, Any]], Iterator[str]]]
    checks = {"Task": _task, "Map": _map, "Choice": _choice}
    if kind in checks:
        yield from checks[kind](state, where, states)


def _task(state: Mapping[str, Any], where: str, _: Any) -> Iterator[str]:
    if state.get("Resource") not in (INVOKE, INVOKE_WITH_TOKEN):
        yield f"{where}/Resource: {state.get('Resource')!r} is not supported by the embedded cloud"
    if "FunctionName" not in (state.get("Parameters") or {}):
        yield f"{where}/Parameters: must have FunctionName"
    if state.get("Resource") == INVOKE and "HeartbeatSeconds" in state:
        yield f"{where}/HeartbeatSeconds: requires a task with a token"
    for retrier in state.get("Retry", []):
        unknown = sorted(set(retrier) - RETRY_FIELDS)
        yield from (f"{where}/Retry: {name} is not supported by the embedded cloud" for name in unknown)
        if not retrier.get("ErrorEquals"):
            yield f"{where}/Retry: must have ErrorEquals"


def _map(state: Mapping[str, Any], where: str, _: Any) -> Iterator[str]:
    processor, reader = state.get("ItemProcessor"), state.get("ItemReader")
    config = processor.get("ProcessorConfig") if isinstance(processor, Mapping) else None
    if config != {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"}:
        yield f"{where}/ItemProcessor: only DISTRIBUTED with STANDARD executions is supported by the embedded cloud"
    yield from _problems(processor, f"{where}/ItemProcessor/", is_top=False)
    if not isinstance(reader, Mapping) or reader.get("Resource") != READ_OBJECT:
        yield f"{where}/ItemReader: only {READ_OBJECT} is supported by the embedded cloud"
    elif reader.get("ReaderConfig") != {"InputType": "JSON"} or set(reader) - {
        *("Resource", "ReaderConfig", "Parameters")
    }:
        yield f"{where}/ItemReader: only a JSON array is supported by the embedded cloud"
    elif set(reader.get("Parameters") or {}) != {"Bucket", "Key"}:
        yield f"{where}/ItemReader/Parameters: must have Bucket and Key"
    concurrency = state.get("MaxConcurrency", 0)
    if not isinstance(concurrency, int) or not 0 <= concurrency <= 10_000:
        yield f"{where}/MaxConcurrency: must be an integer from 0 to 10000"


def _choice(state: Mapping[str, Any], where: str, states: Mapping[str, Any]) -> Iterator[str]:
    for rule in state.get("Choices") or [{}]:
        operators = set(rule) - {"Variable", "Next", "Comment"}
        if len(operators) != 1 or not operators <= set(COMPARISONS):
            yield f"{where}/Choices: must have one operator of {', '.join(COMPARISONS)}; found {sorted(operators)}"
        if rule.get("Next") not in states:
            yield f"{where}/Choices: {rule.get('Next')!r} is not a state"
    if "Default" in state and state["Default"] not in states:
        yield f"{where}/Default: {state['Default']!r} is not a state"
