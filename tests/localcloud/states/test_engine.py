"""Executions: retries with a new token each, timeouts, choices, map runs, stops and redrives.

The expected behavior is that of https://states-language.net/spec.html and of the pages named in `engine`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from localcloud.functions.states.definition import InvalidDefinition, decode
from localcloud.functions.states.engine import NotRedrivable, TokenClosed, UnknownToken
from tests.localcloud.states.dry_engine import DryEngine

WAIT = "arn:aws:states:::lambda:invoke.waitForTaskToken"
INVOKE = "arn:aws:states:::lambda:invoke"
RULE = {"Variable": "$.x", "NumericLessThan": 1, "Next": "B"}


def task(**more: Any) -> dict[str, Any]:
    payload = {"token.$": "$$.Task.Token", "data.$": "$"}
    return {"Type": "Task", "Resource": WAIT, "Parameters": {"FunctionName": "f", "Payload": payload}, **more}


def machine(**states: Any) -> dict[str, Any]:
    return {"StartAt": next(iter(states)), "States": states}


def sweep(concurrency: int, retry: int = 0) -> dict[str, Any]:
    retrier = [{"ErrorEquals": ["RunFailed"], "MaxAttempts": retry, "IntervalSeconds": 5}]
    member = task(End=True, ResultSelector={}, **({"Retry": retrier} if retry else {}))
    return machine(
        Train={
            "Type": "Map",
            "Label": "Train",
            "ItemReader": {
                "Resource": "arn:aws:states:::s3:getObject",
                "ReaderConfig": {"InputType": "JSON"},
                "Parameters": {"Bucket": "b", "Key": "k"},
            },
            "ItemSelector": {"member.$": "$$.Map.Item.Value", "execution.$": "$$.Execution.Name"},
            "ItemProcessor": {
                "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
                **machine(Member=member),
            },
            "MaxConcurrency": concurrency,
            "ResultPath": None,
            "Next": "Evaluate",
        },
        Evaluate=task(End=True),
    )


def kinds(history: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in history]


def test_each_attempt_has_its_own_token_and_retries_end() -> None:
    dry = DryEngine(
        machine(A=task(End=True, Retry=[{"ErrorEquals": ["Busy"], "IntervalSeconds": 10, "MaxAttempts": 1}]))
    )
    execution = dry.start()
    first, parameters = dry.ports.waiting.popleft()
    assert parameters["Payload"]["token"] == first.token
    dry.engine.failed(first, "Busy", "no slot")
    assert not dry.ports.waiting
    dry.pass_seconds(9)
    assert not dry.ports.waiting
    dry.pass_seconds(1)
    second, _ = dry.ports.waiting.popleft()
    assert second.token != first.token
    with pytest.raises(TokenClosed):
        dry.engine.succeed(first.token, {})
    with pytest.raises(UnknownToken):
        dry.engine.succeed("unknown", {})
    dry.engine.fail(second.token, "Busy", "still no slot")
    assert (execution.status, execution.error, execution.cause) == ("FAILED", "Busy", "still no slot")


def test_a_task_with_a_token_does_not_end_when_its_function_returns() -> None:
    dry = DryEngine(machine(A=task(End=True)))
    execution = dry.start({"x": 1})
    attempt, parameters = dry.ports.waiting.popleft()
    assert parameters["Payload"]["data"] == {"x": 1}
    dry.engine.returned(attempt, {"Payload": None})
    assert execution.status == "RUNNING"
    dry.engine.succeed(attempt.token, {"y": 2})
    assert (execution.status, execution.output) == ("SUCCEEDED", {"y": 2})
    assert kinds(execution.history) == [
        *("ExecutionStarted", "TaskStateEntered", "TaskScheduled", "TaskStarted", "TaskSubmitted", "TaskSucceeded"),
        *("TaskStateExited", "ExecutionSucceeded"),
    ]


def test_heartbeats_extend_a_task_and_a_missing_one_ends_it() -> None:
    dry = DryEngine(machine(A=task(End=True, HeartbeatSeconds=60, TimeoutSeconds=100)))
    execution = dry.start()
    attempt, _ = dry.ports.waiting.popleft()
    dry.pass_seconds(59)
    dry.engine.heartbeat(attempt.token)
    dry.pass_seconds(40)
    assert execution.status == "RUNNING"
    dry.pass_seconds(1)  # the timeout does not depend on heartbeats
    assert (execution.status, execution.error) == ("FAILED", "States.Timeout")
    with pytest.raises(TokenClosed):
        dry.engine.heartbeat(attempt.token)


@pytest.mark.parametrize(("value", "status"), [(1.1, "SUCCEEDED"), (1.2, "FAILED"), ("1", "FAILED")])
def test_a_choice_compares_numbers(value: Any, status: str) -> None:
    rule = {"Variable": "$.metrics.bits", "NumericLessThan": 1.2, "Next": "Good"}
    dry = DryEngine(
        machine(
            When={"Type": "Choice", "Choices": [rule], "Default": "Bad"},
            Good={"Type": "Succeed"},
            Bad={"Type": "Fail", "Error": "TooHigh"},
        )
    )
    assert dry.start({"metrics": {"bits": value}}).status == status


def test_a_missing_variable_fails_the_execution() -> None:
    rule = {"Variable": "$.metrics.bits", "NumericLessThan": 1.2, "Next": "Good"}
    dry = DryEngine(machine(When={"Type": "Choice", "Choices": [rule]}, Good={"Type": "Succeed"}))
    execution = dry.start({"metrics": {}})
    assert (execution.status, execution.error) == ("FAILED", "States.Runtime")


def test_a_sweep_of_5000_members_stays_below_the_history_limit() -> None:
    dry = DryEngine(sweep(concurrency=40), items=[{"index": number} for number in range(5000)])
    execution = dry.start()
    seen: list[int] = []

    def finish(attempt: Any, parameters: Any) -> None:
        data = parameters["Payload"]["data"]
        if "member" in data:
            seen.append(data["member"]["index"])
            assert data["execution"] == "one"
        dry.engine.returned(attempt, {"Payload": None})
        dry.engine.succeed(attempt.token, {"index": 1})

    dry.answer_all(finish)
    assert execution.status == "SUCCEEDED"
    assert sorted(seen) == list(range(5000)), "every member runs once"
    assert dry.ports.most_waiting == 40
    longest = max(len(each.history) for each in dry.engine.executions.values())
    assert longest < 25_000
    assert len(execution.history) < 30, kinds(execution.history)


def test_a_redrive_repeats_only_the_members_that_did_not_finish() -> None:
    dry = DryEngine(sweep(concurrency=2), items=["a", "b", "c", "d"])
    execution = dry.start()
    runs: list[str] = []

    def until_c(attempt: Any, parameters: Any) -> None:
        member = parameters["Payload"]["data"].get("member", "evaluate")
        runs.append(member)
        if member == "c" and runs.count("c") == 1:
            dry.engine.fail(attempt.token, "RunFailed", "out of memory")
        elif attempt.is_open and member != "d":
            dry.engine.succeed(attempt.token, {})

    dry.answer_all(until_c)
    assert (execution.status, execution.error) == ("FAILED", "States.ExceedToleratedFailureThreshold")
    assert runs == ["a", "b", "c", "d"]
    dry.engine.redrive(execution)
    assert dry.ports.redrives == 1

    def finish(attempt: Any, parameters: Any) -> None:
        runs.append(parameters["Payload"]["data"].get("member", "evaluate"))
        dry.engine.succeed(attempt.token, {})

    dry.answer_all(finish)
    assert execution.status == "SUCCEEDED"
    assert runs == ["a", "b", "c", "d", "c", "d", "evaluate"]
    assert dry.ports.statuses == ["RUNNING", "FAILED", "RUNNING", "SUCCEEDED"]
    with pytest.raises(NotRedrivable):
        dry.engine.redrive(execution)


def test_a_failed_step_after_a_map_is_redriven_alone() -> None:
    dry = DryEngine(sweep(concurrency=4), items=["a", "b"])
    execution = dry.start()
    calls = 0

    def answer(attempt: Any, parameters: Any) -> None:
        nonlocal calls
        calls += 1
        if "member" in parameters["Payload"]["data"]:
            dry.engine.succeed(attempt.token, {})
        else:
            dry.engine.fail(attempt.token, "RunFailed", "bad weights")

    dry.answer_all(answer)
    assert (execution.status, execution.error, calls) == ("FAILED", "RunFailed", 3)
    (run,) = dry.engine.map_runs.values()
    assert (run.status, run.counts()["succeeded"]) == ("SUCCEEDED", 2), "it remains after its state has ended"
    dry.engine.redrive(execution)
    dry.answer_all(lambda attempt, _: dry.engine.succeed(attempt.token, {"ok": True}))
    assert execution.status == "SUCCEEDED"
    assert kinds(execution.history).count("MapRunStarted") == 1
    assert "ExecutionRedriven" in kinds(execution.history)


def test_a_stop_aborts_the_members_and_closes_their_tokens() -> None:
    dry = DryEngine(sweep(concurrency=2), items=["a", "b", "c"])
    execution = dry.start()
    tokens = [attempt.token for attempt, _ in dry.ports.waiting]
    dry.engine.stop(execution, "Stopped", "by a user")
    assert execution.status == "ABORTED"
    children = [each for each in dry.engine.executions.values() if each.parent is not None]
    assert [each.status for each in children] == ["ABORTED", "ABORTED"]
    for token in tokens:
        with pytest.raises(TokenClosed):
            dry.engine.heartbeat(token)


def test_a_result_above_the_payload_limit_fails() -> None:
    dry = DryEngine(machine(A=task(End=True)))
    execution = dry.start()
    dry.engine.succeed(dry.ports.waiting.popleft()[0].token, "x" * (256 * 1024))
    assert (execution.status, execution.error) == ("FAILED", "States.DataLimitExceeded")


@pytest.mark.parametrize(
    ("definition", "named"),
    [
        (machine(A={"Type": "Wait", "Seconds": 1, "End": True}), "Wait"),
        (machine(A={"Type": "Parallel", "Branches": [], "End": True}), "Parallel"),
        (machine(A=task(End=True, Catch=[])), "Catch"),
        (machine(A=task(End=True, Retry=[{"ErrorEquals": ["Busy"], "JitterStrategy": "FULL"}])), "JitterStrategy"),
        (machine(A={"Type": "Choice", "Choices": [RULE], "OutputPath": "$.x"}, B={"Type": "Succeed"}), "OutputPath"),
        (machine(A=task()), "either Next or End"),
        (machine(A=task(Next="B")), "'B' is not a state"),
        (machine(A={**task(End=True), "Resource": "arn:aws:states:::aws-sdk:s3:getObject"}), "aws-sdk:s3:getObject"),
        (machine(A={"Type": "Pass", "Parameters": {"x.$": "States.Format('a')"}, "End": True}), "States.Format"),
        (machine(A={"Type": "Pass", "InputPath": "$..x", "End": True}), "$..x"),
        ({**machine(A={"Type": "Succeed"}), "QueryLanguage": "JSONata"}, "QueryLanguage"),
        (machine(A={"Type": "Map", "ItemProcessor": machine(B={"Type": "Succeed"}), "End": True}), "DISTRIBUTED"),
    ],
)
def test_unsupported_parts_of_the_language_are_rejected_by_name(definition: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        decode(json.dumps(definition))
    assert named in str(caught.value)
