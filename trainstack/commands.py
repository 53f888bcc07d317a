"""The command line of `trainstack`. All commands use only the caller's AWS credentials.

`session.EXIT_CODES` documents the exit codes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from botocore.exceptions import BotoCoreError, ClientError

from trainstack import account, dispatch, models
from trainstack.costs import command as cost_command
from trainstack.image import command as image_command
from trainstack.kubernetes import command as kubernetes_command
from trainstack.observe import metrics, node_events, status, tensorboard
from trainstack.observe.current import observing, status_of
from trainstack.operate import deploying, running, verbs
from trainstack.pipelines import command as pipeline_command
from trainstack.reader_policy import model_statements, operator_policy, reader_policy
from trainstack.report import command as report_command
from trainstack.session import EXIT_CODES, FAILED, MISSING, Account, CommandError, Json, Name, Region, span_seconds
from trainstack.slurm import command as slurm_command
from trainstack.zombies import command as zombies_command

PLUGIN_PAGE = (
    "https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-install-plugin.html"
)
PROGRAMS = (
    ("config", "stacks", "Check, review and deliver deployment files (`python -m stacks`)."),
    ("training", "training", "Prepare data, inspect checkpoints, train manually (`python -m training`)."),
    ("cloud", "localcloud", "Run the embedded cloud (`python -m localcloud`)."),
)
"""Programs that this command starts: name, module and description."""

app = typer.Typer(
    help="Operate training runs on AWS.", epilog=EXIT_CODES, no_args_is_help=True, pretty_exceptions_enable=False
)


@app.command("runs")
def show_runs(region: Region = None, as_json: Json = False) -> None:
    """List the runs of all deployments in a region."""
    opened = observing(region)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(partial(status_of, opened), account.find_all(opened.client)))
    if as_json:
        print(json.dumps([each.to_json() for each in found]))
    elif not found:
        print(f"no deployments in {opened.region}")
    for each in [] if as_json else found:
        step = "-" if each.step is None else f"{each.step:,}" + (f"/{each.steps_total:,}" if each.steps_total else "")
        loss = "" if each.loss is None else f"  loss {each.loss:.4f}"
        price = f"  {each.usd_per_hour:.2f} USD/h" if each.nodes and each.usd_per_hour is not None else ""
        print(f"{each.name:<24} {each.run:<20} {each.phase:<10} step {step}{loss}  {len(each.nodes)} nodes{price}")


@app.command("events")
def show_events(
    name: Name,
    region: Region = None,
    node: Annotated[str, typer.Option(help="Only this instance's events.")] = "",
    since: Annotated[str, typer.Option(help="Age of the oldest event, such as 30m, 6h or 2d.")] = "1h",
    kind: Annotated[list[str] | None, typer.Option("--kind", help="Only this kind of event; can be repeated.")] = None,
    follow: Annotated[bool, typer.Option(help="Continue until Ctrl-C, even when nodes are replaced.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print the nodes' events, oldest first."""
    oldest = time.time() - span_seconds(since)
    reader = _reader(Account(region), name, oldest, node)
    for event in reader.follow() if follow else reader.poll():
        if not kind or event["event"] in kind:
            print(json.dumps(event) if as_json else node_events.line_of(event), flush=True)


@app.command("ssh", context_settings={"ignore_unknown_options": True})
def open_shell(
    name: Name,
    node: Annotated[str, typer.Argument(help="Instance id, a prefix of it, or a node rank.")] = "0",
    command: Annotated[list[str] | None, typer.Argument(help="Command to run instead of a shell, after --.")] = None,
    region: Region = None,
) -> None:
    """Open a shell on a node through Session Manager, without keys or open ports."""
    opened = observing(region)
    instance_id = _instance(status_of(opened, account.find(opened.client, name)), node)
    for program, remedy in (
        ("aws", "install the AWS CLI"),
        ("session-manager-plugin", f"install the plugin: {PLUGIN_PAGE}"),
    ):
        if shutil.which(program) is None:
            raise CommandError(FAILED, f"{program} is not installed; {remedy}")
    arguments = ["aws", "ssm", "start-session", "--region", opened.region, "--target", instance_id]
    if command:
        parameters = json.dumps({"command": [" ".join(command)]})
        arguments += ["--document-name", "AWS-StartInteractiveCommand", "--parameters", parameters]
    raise typer.Exit(subprocess.run(arguments).returncode)


@app.command("reader-policy")
def print_reader_policy(
    name: Name,
    region: Region = None,
    operate: Annotated[
        bool, typer.Option("--operate", help="Add the permissions for stop, resume, restart and retry.")
    ] = False,
    models: Annotated[
        bool, typer.Option("--models", help="Add the permissions for weights, sample, evaluate and report.")
    ] = False,
) -> None:
    """Print the IAM policy for the read-only commands, except `ssh`, on one deployment."""
    opened = Account(region)
    identity = opened.client("sts").get_caller_identity()
    partition = str(identity["Arn"]).split(":")[1]
    found = account.find(opened.client, name)
    make = operator_policy if operate else reader_policy
    policy = make(found, opened.region, identity["Account"], partition)
    policy["Statement"] += model_statements(found, partition) if models else []
    print(json.dumps(policy, indent=2))


def _instance(found: status.Status, node: str) -> str:
    matches = [
        each.instance_id
        for each in found.nodes
        if (node.isdecimal() and each.rank == int(node)) or (len(node) > 2 and each.instance_id.startswith(node))
    ]
    if len(matches) == 1:
        return matches[0]
    live = ", ".join(f"{each.instance_id} (rank {each.rank})" for each in found.nodes) or "none"
    problem = "is ambiguous" if matches else "matches no live instance"
    raise CommandError(MISSING, f"{node}: {problem}; live instances: {live}")


def _reader(opened: Account, name: str, oldest: float, node: str) -> node_events.EventReader:
    group = account.find(opened.client, name).log_group
    return node_events.EventReader(opened.client("logs"), group, oldest, node)


def _add_program(name: str, module: str, text: str) -> None:
    """Add a command that replaces this process with `python -m MODULE`, which parses the remaining arguments itself."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command(name, help=text, context_settings=settings, add_help_option=False, rich_help_panel="Programs")
    def run(context: typer.Context) -> None:
        os.execv(sys.executable, [sys.executable, "-m", module, *context.args])  # noqa: S606 needs no shell


@app.callback()
def use_account(
    local: Annotated[
        bool, typer.Option("--local", help="Use the embedded cloud that `trainstack cloud up` started.")
    ] = False,
    state: Annotated[Path, typer.Option(help="State directory of the embedded cloud.")] = Path("build/localcloud"),
) -> None:
    """Operate training runs on AWS."""
    if local:
        command = [sys.executable, "-m", "localcloud", "env", "--json", "--state", str(state)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise CommandError(FAILED, (done.stdout + done.stderr).strip())
        os.environ.update(json.loads(done.stdout))


dispatch.add(app)
deploying.add(app)
verbs.add(app)
running.add(app)
cost_command.add(app)
metrics.add(app)
models.add(app)
image_command.add(app)
report_command.add(app)
kubernetes_command.add(app)
slurm_command.add(app)
pipeline_command.add(app)
tensorboard.add(app)
zombies_command.add(app)
for program in PROGRAMS:
    _add_program(*program)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, and exit with one of the codes in `session.EXIT_CODES`."""
    try:
        app(arguments, prog_name="trainstack")
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.code)
    except account.NotDeployed as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(MISSING)
    except (ClientError, BotoCoreError) as error:
        print(f"error: {error}; check the credentials with `aws sts get-caller-identity`", file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of the output has exited, as in `trainstack events NAME | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    sys.exit(0)
