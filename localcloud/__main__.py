"""`python -m localcloud`: start, look into, disturb and stop an AWS account on this machine."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from localcloud import daemon
from localcloud.cloudformation.accepted import ACCEPTED_TYPES
from localcloud.state import MARKER, CloudFile, end_processes, put_aside, read_cloud_file

app = typer.Typer(add_completion=False, help=__doc__, no_args_is_help=True)
console = Console(highlight=False, soft_wrap=True)
State = Annotated[Path, typer.Option("--state", file_okay=False, help="State directory of the cloud.")]
DEFAULT_STATE = Path("build/localcloud")


def _running(state: Path) -> CloudFile:
    cloud = read_cloud_file(state)
    if cloud is None or not cloud.is_alive():
        console.print(f"no cloud runs in {state}; start one: python -m localcloud up --state {state}", style="red")
        raise typer.Exit(1)
    return cloud


def _ask(cloud: CloudFile, path: str, body: dict[str, Any] | None = None) -> Any:
    """Call an unsigned verb of the cloud; GET without a body, else POST."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{cloud.endpoint_url}/_localcloud/{path}", data=data)  # noqa: S310 (127.0.0.1)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        console.print(_refusal(error), style="red", markup=False)
        raise typer.Exit(1) from None
    except OSError as error:
        console.print(f"{cloud.endpoint_url} does not answer: {error}; see cloud.log in its state", style="red")
        raise typer.Exit(1) from None


def _refusal(error: urllib.error.HTTPError) -> str:
    body = error.read().decode(errors="replace")
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body or str(error)


@app.command()
def up(
    state: State = DEFAULT_STATE,
    region: Annotated[str, typer.Option(help="Region of the account.")] = "us-east-1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Preferred port; another is taken when it is busy.")
    ] = 4600,
    foreground: Annotated[bool, typer.Option(help="Stay in this terminal; Ctrl-C ends it.")] = False,
) -> None:
    """Start a cloud, empty, and wait until it answers."""
    state.mkdir(parents=True, exist_ok=True)
    # The background process runs this command too, in the foreground; whoever started it has made room.
    if not (foreground and os.environ.get(MARKER) == str(state.resolve())):
        running = read_cloud_file(state)
        if running is not None and running.is_alive():
            console.print(f"already up: {running.endpoint_url}")
            return
        end_processes(state)
        put_aside(state)
    if foreground:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        daemon.serve(state, region=region, port=port)
        return
    try:
        cloud = daemon.start(state, region=region, port=port)
    except daemon.StartFailed as failure:
        console.print(str(failure), style="red", markup=False)
        raise typer.Exit(1) from failure
    console.print(f"up: {cloud.endpoint_url}   use it: eval $(python -m localcloud env --state {state})")


@app.command()
def status(
    state: State = DEFAULT_STATE, as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False
) -> None:
    """Show where the cloud listens and its instances."""
    cloud = _running(state)
    instances = _ask(cloud, "compute/instances")
    if as_json:
        print(json.dumps({"endpoint_url": cloud.endpoint_url, "pid": cloud.pid, "instances": instances}))
        return
    table = Table(title=cloud.endpoint_url)
    for title in ("instance", "type", "market", "zone", "address", "state", "group"):
        table.add_column(title, no_wrap=title in ("instance", "address"), overflow="fold")
    for one in instances:
        fields = ("id", "type", "market", "zone", "private_address", "state", "group")
        table.add_row(*(str(one.get(field) or "") for field in fields))
    console.print(table)


@app.command()
def env(
    state: State = DEFAULT_STATE, as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False
) -> None:
    """Print the variables by which AWS tools reach this cloud: eval $(python -m localcloud env)."""
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
    notice_seconds: Annotated[float, typer.Option(min=0, help="Time between notice and end.")] = 120.0,
    no_notice: Annotated[bool, typer.Option("--no-notice", help="The machine is gone at once.")] = False,
) -> None:
    """Take a spot instance back, as AWS does."""
    body = {"instance_id": instance_id, "notice_seconds": None if no_notice else notice_seconds}
    _ask(_running(state), "compute/interrupt", body)
    console.print(f"{instance_id}: " + ("gone" if no_notice else f"noticed, ends in {notice_seconds:.0f} s"))


@app.command()
def logs(instance_id: str, state: State = DEFAULT_STATE) -> None:
    """Print what an instance wrote to its console (also after the cloud went down)."""
    path = state / "instances" / instance_id / "console.log"
    if not path.exists():
        known = sorted(p.name for p in (state / "instances").glob("i-*"))
        console.print(f"{instance_id}: no such instance in {state}; there are {known}", style="red", markup=False)
        raise typer.Exit(1)
    sys.stdout.write(path.read_text(encoding="utf-8", errors="replace"))


@app.command()
def accepted() -> None:
    """List the resource types that a deploy accepts although nothing emulates them."""
    for type_name, reason in ACCEPTED_TYPES.items():
        print(f"{type_name}: {reason}")


@app.command()
def down(state: State = DEFAULT_STATE) -> None:
    """End the cloud and everything it started, also after a crash; its records stay for reading."""
    ended = end_processes(state) if state.exists() else 0
    (state / "cloud.json").unlink(missing_ok=True)
    console.print(f"down: {ended} processes ended" if ended else "down: nothing was running")


if __name__ == "__main__":
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    app()
