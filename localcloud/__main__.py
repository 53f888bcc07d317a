"""Run an emulated AWS account on this machine: start it, inspect it, interrupt its instances and stop it."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from localcloud import daemon
from localcloud.account.account_file import AccountFileError, read_account
from localcloud.cloudformation.resource_types import ACCEPTED_TYPES, RECORDED_TYPES
from localcloud.compute import capacity_trace
from localcloud.state import MARKER, CloudFile, archive_records, end_processes, mark_of, read_cloud_file
from localcloud.tokens import TOKEN_HEADER

app = typer.Typer(add_completion=False, help=__doc__, no_args_is_help=True)
console = Console(highlight=False, soft_wrap=True)
State = Annotated[Path, typer.Option("--state", file_okay=False, help="The cloud's state directory.")]
DEFAULT_STATE = Path("build/localcloud")


def _running(state: Path) -> CloudFile:
    cloud = read_cloud_file(state)
    if cloud is None or not cloud.is_alive():
        console.print(
            f"no cloud is running in {state}; start one with: python -m localcloud up --state {state}", style="red"
        )
        raise typer.Exit(1)
    return cloud


def _request(cloud: CloudFile, path: str, body: dict[str, Any] | None = None) -> Any:
    """Call the control API, using POST if there is a body and GET otherwise."""
    data = None if body is None else json.dumps(body).encode()
    headers = {TOKEN_HEADER: cloud.control_token}
    request = urllib.request.Request(f"{cloud.endpoint_url}/_localcloud/{path}", data, headers)  # noqa: S310 (127.0.0.1)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        console.print(_error_message(error), style="red", markup=False)
        raise typer.Exit(1) from None
    except OSError as error:
        console.print(
            f"no response from {cloud.endpoint_url}: {error}; see cloud.log in the state directory", style="red"
        )
        raise typer.Exit(1) from None


def _error_message(error: urllib.error.HTTPError) -> str:
    body = error.read().decode(errors="replace")
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body or str(error)


@app.command()
def up(
    state: State = DEFAULT_STATE,
    region: Annotated[str, typer.Option(help="The cloud's AWS region.")] = "us-east-1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Preferred port. If it is in use, another port is chosen.")
    ] = 4600,
    foreground: Annotated[bool, typer.Option(help="Run in this terminal until Ctrl-C.")] = False,
    account: Annotated[
        Path | None, typer.Option("--account", help="YAML file with the account's limits and defects.")
    ] = None,
    check_models: Annotated[
        bool,
        typer.Option(
            "--check-models",
            envvar="LOCALCLOUD_CHECK_MODELS",
            help="Record in records.jsonl how requests and responses differ from botocore's models.",
        ),
    ] = False,
) -> None:
    """Start an empty cloud and wait until it is ready."""
    try:
        described = None if account is None else read_account(account)
    except AccountFileError as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(1) from error
    state.mkdir(parents=True, exist_ok=True)
    # The background process also runs this command, after its parent has cleared the state directory.
    if not (foreground and os.environ.get(MARKER) == mark_of(state)):
        running = read_cloud_file(state)
        if running is not None and running.is_alive():
            console.print(f"already running: {running.endpoint_url}")
            return
        end_processes(state)
        archive_records(state)
    if foreground:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        daemon.serve(state, region=region, port=port, account=described, check_models=check_models)
        return
    try:
        cloud = daemon.start(
            state, region=region, port=port, account=account, check_models=check_models, progress=console.print
        )
    except daemon.StartFailed as failure:
        console.print(str(failure), style="red", markup=False)
        raise typer.Exit(1) from failure
    console.print(f"running: {cloud.endpoint_url}; to use it: eval $(python -m localcloud env --state {state})")


@app.command()
def status(
    state: State = DEFAULT_STATE, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show the cloud's endpoint and its instances, and list the resources that are only recorded."""
    cloud = _running(state)
    instances = _request(cloud, "compute/instances")
    recorded = _request(cloud, "cloudformation/recorded")
    if as_json:
        found = {"endpoint_url": cloud.endpoint_url, "pid": cloud.pid, "instances": instances, "recorded": recorded}
        print(json.dumps(found))
        return
    table = Table(title=cloud.endpoint_url)
    for title in ("instance", "type", "market", "zone", "address", "state", "group"):
        table.add_column(title, no_wrap=True)
    for one in instances:
        fields = ("id", "type", "market", "zone", "private_address", "state", "group")
        table.add_row(*(str(one.get(field) or "") for field in fields))
    # In a narrow terminal, wrapped lines are easier to read than words split across lines of a column.
    needed = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    Console(highlight=False, width=max(console.width, needed)).print(table)
    for one in recorded:
        print(f"{one['stack']}/{one['logical_id']}: {one['type']}: {RECORDED_TYPES[one['type']]}")


@app.command()
def env(
    state: State = DEFAULT_STATE, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Print export statements, for use with eval, that point AWS tools at this cloud."""
    variables = _running(state).environment(state)
    if as_json:
        print(json.dumps(variables))
        return
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")


@app.command()
def interrupt(
    instance_id: str,
    state: State = DEFAULT_STATE,
    notice_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds between the interruption notice and termination.")
    ] = 120.0,
    no_notice: Annotated[bool, typer.Option("--no-notice", help="Terminate the instance immediately.")] = False,
) -> None:
    """Interrupt a Spot instance."""
    body = {"instance_id": instance_id, "notice_seconds": None if no_notice else notice_seconds}
    _request(_running(state), "compute/interrupt", body)
    console.print(f"{instance_id}: " + ("terminated" if no_notice else f"terminates in {notice_seconds:.0f} s"))


@app.command()
def capacity(
    traces: Annotated[
        list[Path],
        typer.Option("--trace", exists=True, help="Trace of one zone. The file or its folder is named after the zone."),
    ],
    types: Annotated[str, typer.Option(help="Instance types that follow the traces, separated by commas.")],
    state: State = DEFAULT_STATE,
    speed: Annotated[float, typer.Option(min=0.001, help="Replay speed, in seconds of the trace per second.")] = 1.0,
    notice_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds between the interruption notice and termination.")
    ] = 120.0,
) -> None:
    """Replay recorded spot capacity and prices until the traces end. When a zone loses its capacity, its spot instances
    are interrupted."""
    cloud = _running(state)
    try:
        found = capacity_trace.changes([capacity_trace.read_trace(path) for path in traces])
    except capacity_trace.TraceError as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(1) from error

    def apply(change: capacity_trace.Change) -> None:
        body = {
            "instance_types": types.split(","),
            "zone": change.zone,
            "is_available": change.is_available,
            "usd_per_hour": change.usd_per_hour,
            "notice_seconds": notice_seconds,
        }
        _request(cloud, "compute/pool", body)
        price = "" if change.usd_per_hour is None else f", {change.usd_per_hour:.4f} USD per hour"
        has = "capacity" if change.is_available else "no capacity"
        console.print(f"{change.trace_seconds / 3600:8.2f} h  {change.zone}: {has}{price}")

    capacity_trace.play(found, speed, apply, time.monotonic, time.sleep)


@app.command()
def logs(instance_id: str, state: State = DEFAULT_STATE) -> None:
    """Print an instance's console output. This also works after the cloud has stopped."""
    path = state / "instances" / instance_id / "console.log"
    if not path.exists():
        known = sorted(p.name for p in (state / "instances").glob("i-*"))
        console.print(
            f"{instance_id}: no such instance in {state}; instances: {', '.join(known) or 'none'}",
            style="red",
            markup=False,
        )
        raise typer.Exit(1)
    sys.stdout.write(path.read_text(encoding="utf-8", errors="replace"))


@app.command()
def accepted() -> None:
    """List the resource types that are allowed in templates but not emulated."""
    for type_name, reason in ACCEPTED_TYPES.items():
        print(f"{type_name}: {reason}")


@app.command()
def down(state: State = DEFAULT_STATE) -> None:
    """Stop the cloud and all its processes, even after a crash, and keep its records."""
    ended = end_processes(state) if state.exists() else 0
    (state / "cloud.json").unlink(missing_ok=True)
    console.print(f"stopped: ended {ended} processes" if ended else "nothing was running")


if __name__ == "__main__":
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    app()
