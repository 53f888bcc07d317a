"""The commands of `trainstack pipeline`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from botocore.exceptions import ClientError

from stacks.functions.pipeline_runs.records import Result
from trainstack.operate.deploying import load
from trainstack.pipelines import executions
from trainstack.pipelines.costs import Costs, execution_costs
from trainstack.pipelines.executions import ExecutionStatus, Pipeline, StepStatus
from trainstack.pipelines.graph import svg
from trainstack.session import FAILED, REFUSED, Account, CommandError, Json, Region, is_file_name

POLL_SECONDS = 2.0
Deployment = Annotated[str, typer.Argument(metavar="NAME|FILE", help="Deployment name, or its deployment file.")]
Execution = Annotated[str, typer.Option(help="Name of the execution; default: the newest one.")]


def add(app: typer.Typer) -> None:
    """Add the commands to a command line."""
    group = typer.Typer(help="Run a pipeline of steps, and show its results (docs/pipelines.md).", no_args_is_help=True)
    for name, command in (
        ("run", run),
        ("status", show_status),
        ("graph", draw_graph),
        ("stop", stop),
        ("results", show_results),
        ("redrive", redrive),
    ):
        group.command(name)(command)
    app.add_typer(group, name="pipeline", rich_help_panel="Change a run")


def run(
    deployment: Deployment,
    region: Region = None,
    name: Annotated[str, typer.Option(help="Name of the execution; default: the current time.")] = "",
    follow: Annotated[bool, typer.Option(help="Report progress until the execution ends.")] = True,
    as_json: Json = False,
) -> None:
    """Start the steps. A step whose inputs have not changed since it finished does not run again."""
    opened, pipeline = _open(deployment, region)
    states = opened.client("stepfunctions")
    running = states.list_executions(stateMachineArn=pipeline.machine_arn, statusFilter="RUNNING")["executions"]
    if running:
        names = ", ".join(str(each["name"]) for each in running)
        raise CommandError(REFUSED, f"{pipeline.name}: {names} is running; stop it, or wait until it has ended")
    chosen = name or datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
    arn = str(states.start_execution(stateMachineArn=pipeline.machine_arn, name=chosen, input="{}")["executionArn"])
    print(f"{pipeline.name}: started execution {chosen}", file=sys.stderr)
    _finish(opened, pipeline, arn, follows=follow, as_json=as_json)


def show_status(
    deployment: Deployment, region: Region = None, execution: Execution = "", as_json: Json = False
) -> None:
    """Show the state and the cost of each step of an execution."""
    opened, pipeline = _open(deployment, region)
    arn = executions.execution_arn(opened, pipeline, execution)
    names = executions.step_names(opened, pipeline)
    _print(_with_costs(opened, pipeline, executions.status_of(opened, pipeline, names, arn)), as_json=as_json)


def draw_graph(
    deployment: Deployment,
    output: Annotated[Path, typer.Option("--output", "-o", help="SVG file to write.")],
    region: Region = None,
    execution: Execution = "",
) -> None:
    """Draw the steps of an execution as SVG."""
    opened, pipeline = _open(deployment, region)
    arn, names = executions.execution_arn(opened, pipeline, execution), executions.step_names(opened, pipeline)
    found = executions.status_of(opened, pipeline, names, arn)
    try:
        output.write_text(svg(found), encoding="utf-8")
    except OSError as error:
        raise CommandError(FAILED, f"{output}: {error.strerror}") from error
    print(f"{output}: written")


def stop(deployment: Deployment, region: Region = None, execution: Execution = "") -> None:
    """Stop an execution. Its runs save a checkpoint, and their nodes shut down; a redrive continues from there."""
    opened, pipeline = _open(deployment, region)
    arn = executions.execution_arn(opened, pipeline, execution)
    opened.client("stepfunctions").stop_execution(executionArn=arn, error="Stopped", cause="trainstack pipeline stop")
    print(f"{pipeline.name}: stopped execution {arn.rpartition(':')[2]}; its runs save and stop within about a minute")


def show_results(
    deployment: Deployment, region: Region = None, execution: Execution = "", as_json: Json = False
) -> None:
    """List the finished members of an execution with their settings, metrics, costs and runs."""
    opened, pipeline = _open(deployment, region)
    arn = executions.execution_arn(opened, pipeline, execution)
    name = arn.rpartition(":")[2]
    found = executions.results(opened, pipeline, name)
    costs = _costs(opened, pipeline, arn)
    if as_json:
        print(json.dumps([_result_json(each, costs) for each in found]))
        return
    if not found:
        print(f"{pipeline.name}: no member of execution {name} has finished")
    for line in _table(found, costs):
        print(line)


def redrive(
    deployment: Deployment,
    region: Region = None,
    execution: Execution = "",
    follow: Annotated[bool, typer.Option(help="Report progress until the execution ends.")] = True,
    as_json: Json = False,
) -> None:
    """Continue a failed or stopped execution. Finished members are not repeated.

    AWS keeps the definition with which the execution started, and redrives it for 14 days after its end. After an edit,
    start a new execution: its finished steps are cached.
    """
    opened, pipeline = _open(deployment, region)
    arn = executions.execution_arn(opened, pipeline, execution)
    try:
        opened.client("stepfunctions").redrive_execution(executionArn=arn)
    except ClientError as error:
        if error.response["Error"]["Code"] != "ExecutionNotRedrivable":
            raise
        raise CommandError(REFUSED, f"{pipeline.name}: {error.response['Error']['Message']}") from error
    print(f"{pipeline.name}: continuing execution {arn.rpartition(':')[2]}", file=sys.stderr)
    _finish(opened, pipeline, arn, follows=follow, as_json=as_json)


def _open(deployment: str, region: str | None) -> tuple[Account, Pipeline]:
    if is_file_name(deployment):
        config = load(Path(deployment), warn=False)
        deployment, region = config.name, region or config.region
    opened = Account(region).prepare("s3")
    return opened, executions.find(opened, deployment)


def _finish(opened: Account, pipeline: Pipeline, arn: str, *, follows: bool, as_json: bool) -> None:
    """Wait until an execution has ended, and print its status.

    Raises:
        CommandError: The execution was not successful.
    """
    names = executions.step_names(opened, pipeline)
    status = executions.status_of(opened, pipeline, names, arn)
    shown = ""
    while follows and status.status == "RUNNING":
        line = _line(status)
        if line != shown:
            print(line, file=sys.stderr, flush=True)
            shown = line
        time.sleep(POLL_SECONDS)
        status = executions.status_of(opened, pipeline, names, arn)
    _print(_with_costs(opened, pipeline, status), as_json=as_json)
    if status.status not in ("RUNNING", "SUCCEEDED"):
        raise CommandError(FAILED, f"{pipeline.name}: execution {status.execution} {status.status.lower()}")


def _costs(opened: Account, pipeline: Pipeline, arn: str) -> Costs:
    """Return the costs of an execution. Print the problems of the ledger."""
    found = execution_costs(opened, pipeline, arn)
    for problem in found.problems:
        print(f"problem: {problem}", file=sys.stderr)
    return found


def _with_costs(opened: Account, pipeline: Pipeline, status: ExecutionStatus) -> ExecutionStatus:
    """Add the costs of the steps to a status."""
    costs = _costs(opened, pipeline, status.arn)
    for step in status.steps:
        step.usd = costs.of_step(step.name)
    return status


def _line(status: ExecutionStatus) -> str:
    return "; ".join(f"{step.name} {step.state}{_members(step)}" for step in status.steps)


def _members(step: StepStatus) -> str:
    return f" ({step.counts} of {step.members['total']})" if step.members else ""


def _print(status: ExecutionStatus, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(status.to_json()))
        return
    redrives = f", {status.redrives} redrives" if status.redrives else ""
    total = sum(step.usd or 0.0 for step in status.steps)
    print(f"{status.pipeline}: execution {status.execution}, {status.status.lower()}{redrives}, {total:,.4f} USD")
    for step in status.steps:
        print(f"  {step.name:<12} {step.usd or 0.0:>12,.4f} USD  {step.state}{_members(step)}")
    if status.reason:
        print(f"  {status.reason}")


def _result_json(result: Result, costs: Costs) -> dict[str, Any]:
    names = ("step", "index", "run", "fleet", "settings", "metrics", "cached", "seconds")
    return {**{name: getattr(result, name) for name in names}, "usd": costs.of_run(result.step, result.run)}


def _table(found: Sequence[Result], costs: Costs) -> list[str]:
    lines = []
    for each in found:
        settings = ", ".join(f"{key}={value}" for key, value in each.settings.items())
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in sorted(each.metrics.items()))
        origin = "cached" if each.cached else f"{each.seconds:.0f} s"
        usd = f"{costs.of_run(each.step, each.run):,.4f} USD"
        place = f"{each.fleet}/{each.run}"
        lines.append(f"{each.step:<12} {each.index:>5}  {origin:>8}  {usd:>14}  {place}  {settings}  {metrics}")
    return lines
