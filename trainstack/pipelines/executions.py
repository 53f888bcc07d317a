"""Reads a pipeline's executions: the state of each step, and the results of its members."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from botocore.exceptions import ClientError

from stacks.functions.pipeline_runs.records import InvalidRecord, Result, result_of
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
        members: Number of members by status; empty unless the step has started.
    """

    name: str
    state: StepState = "pending"
    members: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""


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
        try:
            found = opened.client("cloudformation").describe_stacks(StackName=f"{name}-{stack}")["Stacks"][0]
        except ClientError as error:
            if error.response["Error"]["Code"] != "ValidationError":
                raise
            remedy = "deploy a file with a `pipeline` section with `trainstack up FILE`"
            raise CommandError(MISSING, f"{name} has no {stack} in {opened.region}; {remedy}") from error
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


def status_of(opened: Account, pipeline: Pipeline, arn: str) -> ExecutionStatus:
    """Return the status of an execution."""
    states = opened.client("stepfunctions")
    found = states.describe_execution(executionArn=arn)
    definition = json.loads(states.describe_state_machine(stateMachineArn=pipeline.machine_arn)["definition"])
    events = list(_events(states, arn))
    steps = _steps(definition, events, found["status"])
    for step, run_arn in zip(steps, _map_runs(steps, events), strict=True):
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
    """Return the members of an execution that have started or finished, by step and index."""
    s3 = opened.client("s3")
    prefix = f"pipelines/executions/{execution}/"
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=pipeline.control_bucket, Prefix=prefix)
    keys = [each["Key"] for page in pages for each in page.get("Contents", [])]
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


def _steps(definition: Mapping[str, Any], events: Sequence[Mapping[str, Any]], status: str) -> list[StepStatus]:
    """Return the steps with their states: a step has a Map state, and a Task state for its result."""
    names = [name for name, state in definition["States"].items() if state["Type"] == "Map"]
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


def _map_runs(steps: Sequence[StepStatus], events: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Return the ARN of each step's map run. Its first part ends with the step's name, which is the Map's label."""
    found: dict[str, str] = {}
    for event in events:
        if event["type"] == "MapRunStarted":
            arn = str(event["mapRunStartedEventDetails"]["mapRunArn"])
            found[arn.split(":")[-2].rpartition("/")[2]] = arn
    is_recent = {step.name: step.state in ("running", "failed", "stopped") for step in steps}
    return [found.get(step.name) if is_recent[step.name] else None for step in steps]


def _reason(states: Any, run_arn: str | None) -> str:
    """Return the cause of the first failed member, or ""."""
    if run_arn is None:
        return ""
    failed = states.list_executions(mapRunArn=run_arn, statusFilter="FAILED", maxResults=1)["executions"]
    if not failed:
        return ""
    described = states.describe_execution(executionArn=failed[0]["executionArn"])
    return f"{described.get('error', '')}: {described.get('cause', '')}".strip(": ")
