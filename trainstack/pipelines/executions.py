"""Reads a pipeline's executions: the state of each step, and the results of its members."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from botocore.exceptions import ClientError

from stacks.functions.pipeline_runs.records import InvalidRecord, Result, result_of
from trainstack.account import described, object_keys
from trainstack.session import MISSING, Account, CommandError

StepState = Literal["pending", "running", "succeeded", "failed", "stopped", "skipped"]
READERS = 16


@dataclass(frozen=True)
class Pipeline:
    """A deployed pipeline."""

    name: str
    machine_arn: str
    control_bucket: str


@dataclass
class StepStatus:
    """The state of a step in an execution.

    Attributes:
        members: Number of members by status, and in total; only of running, failed and stopped steps.
        usd: Cost of the runs that the execution started, or None while it is not known.
    """

    name: str
    state: StepState = "pending"
    members: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    usd: float | None = None

    @property
    def counts(self) -> str:
        """The number of members by status as text, without the total."""
        return ", ".join(f"{count} {name}" for name, count in self.members.items() if name != "total")


@dataclass(frozen=True)
class ExecutionStatus:
    """An execution with its steps, in order."""

    pipeline: str
    execution: str
    arn: str
    status: str
    redrives: int
    reason: str
    steps: tuple[StepStatus, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        return asdict(self)


def find(opened: Account, name: str) -> Pipeline:
    """Return a deployed pipeline.

    Raises:
        CommandError: The deployment does not exist, or has no pipeline.
    """
    outputs: dict[str, str] = {}
    for stack in ("StorageStack", "WorkflowStack"):
        found = described(opened.client, f"{name}-{stack}")
        if found is None:
            remedy = "deploy a file with a `pipeline` section with `trainstack up FILE`"
            raise CommandError(MISSING, f"{name} has no {stack} in {opened.region}; {remedy}")
        outputs |= {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])}
    return Pipeline(name, outputs["PipelineArn"], outputs["ControlBucket"])


def execution_arn(opened: Account, pipeline: Pipeline, execution: str) -> str:
    """Return the ARN of an execution, or of the newest one if the name is empty.

    Raises:
        CommandError: The pipeline has no execution, or none with this name.
    """
    states = opened.client("stepfunctions")
    if not execution:
        listed = states.list_executions(stateMachineArn=pipeline.machine_arn, maxResults=1)["executions"]
        if not listed:
            raise CommandError(MISSING, f"{pipeline.name}: no execution; start one with `trainstack pipeline run`")
        return str(listed[0]["executionArn"])
    arn = f"{pipeline.machine_arn.replace(':stateMachine:', ':execution:')}:{execution}"
    try:
        states.describe_execution(executionArn=arn)
    except ClientError as error:
        if error.response["Error"]["Code"] != "ExecutionDoesNotExist":
            raise
        raise CommandError(MISSING, f"{pipeline.name}: no execution {execution}") from error
    return arn


def step_names(opened: Account, pipeline: Pipeline) -> list[str]:
    """Return the names of the steps in order, which are those of the Map states."""
    found = opened.client("stepfunctions").describe_state_machine(stateMachineArn=pipeline.machine_arn)
    return [name for name, state in json.loads(found["definition"])["States"].items() if state["Type"] == "Map"]


def status_of(opened: Account, pipeline: Pipeline, names: Sequence[str], arn: str) -> ExecutionStatus:
    """Return the status of an execution.

    Args:
        opened: The account.
        pipeline: The pipeline.
        names: The names of its steps.
        arn: The execution.
    """
    states = opened.client("stepfunctions")
    found = states.describe_execution(executionArn=arn)
    events = list(_events(states, arn))
    steps, runs = _steps(names, events, found["status"]), _map_runs(events)
    for step in steps:
        run_arn = runs.get(step.name) if step.state in ("running", "failed", "stopped") else None
        if run_arn is not None:
            counts = states.describe_map_run(mapRunArn=run_arn)["executionCounts"]
            step.members = {name: count for name, count in counts.items() if count and name != "resultsWritten"}
        if step.state == "failed":
            step.reason = _reason(states, run_arn) or str(found.get("cause", ""))
    reason = next((step.reason for step in steps if step.reason), "")
    return ExecutionStatus(
        *(pipeline.name, found["name"], arn, found["status"], int(found.get("redriveCount", 0)), reason, tuple(steps))
    )


def results(opened: Account, pipeline: Pipeline, execution: str) -> list[Result]:
    """Return the finished members of an execution, by step and index."""
    s3 = opened.client("s3")
    keys = object_keys(s3, pipeline.control_bucket, f"pipelines/executions/{execution}/")
    with ThreadPoolExecutor(READERS) as pool:
        contents = list(
            pool.map(lambda key: s3.get_object(Bucket=pipeline.control_bucket, Key=key)["Body"].read(), keys)
        )
    found = []
    for content in contents:
        try:
            found.append(result_of(content))
        except InvalidRecord:
            continue
    return found


def _events(states: Any, arn: str) -> Iterator[Mapping[str, Any]]:
    for page in states.get_paginator("get_execution_history").paginate(executionArn=arn):
        yield from page["events"]


def _steps(names: Sequence[str], events: Sequence[Mapping[str, Any]], status: str) -> list[StepStatus]:
    """Return the steps with their states: a step has a Map state, and a Task state for its result."""
    steps = {name: StepStatus(name) for name in names}
    ended: StepState = "stopped" if status == "ABORTED" else "failed"
    for event in events:
        details = event.get("stateEnteredEventDetails") or event.get("stateExitedEventDetails") or {}
        step = steps.get(str(details.get("name", "")).partition(":")[0])
        if step is None:
            continue
        if event["type"] == "MapStateEntered":
            step.state = "running"
        elif event["type"] == "TaskStateExited":
            step.state = "succeeded"
    for step in steps.values():
        if step.state == "running" and status != "RUNNING":
            step.state = ended
        if step.state == "pending" and status == "SUCCEEDED":
            step.state = "skipped"
    return list(steps.values())


def _map_runs(events: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the ARN of each step's map run. Its first part ends with the step's name, which is the Map's label."""
    found: dict[str, str] = {}
    for event in events:
        if event["type"] == "MapRunStarted":
            arn = str(event["mapRunStartedEventDetails"]["mapRunArn"])
            found[arn.split(":")[-2].rpartition("/")[2]] = arn
    return found


def _reason(states: Any, run_arn: str | None) -> str:
    """Return the cause of the first failed member, or ""."""
    if run_arn is None:
        return ""
    failed = states.list_executions(mapRunArn=run_arn, statusFilter="FAILED", maxResults=1)["executions"]
    if not failed:
        return ""
    member = states.describe_execution(executionArn=failed[0]["executionArn"])
    return f"{member.get('error', '')}: {member.get('cause', '')}".strip(": ")
