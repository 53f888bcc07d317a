"""The commands that work with every engine: `up`, `status`, `why`, `logs`, `stop` and `resume`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trainstack.engines.engine import Engine, LogQuery, Submission
from trainstack.engines.fleet import FleetEngine
from trainstack.operate.deploying import HARMLESS, load
from trainstack.operate.verbs import Waits
from trainstack.session import Json, Region, is_file_name, span_seconds
from trainstack.slurm.command import read_plan

WATCH_SECONDS = 5.0
Target = Annotated[
    str,
    typer.Argument(metavar="NAME|FILE", help="Deployment name or file; names exist only with engine: fleet."),
]
File = Annotated[Path, typer.Argument(help="Deployment file, such as config/my-run.yaml.")]
console = Console(highlight=False, soft_wrap=True, markup=False)


def add(app: typer.Typer) -> None:
    """Add the commands to a command line."""
    app.command("status")(show_status)
    app.command("why")(explain)
    app.command("logs")(show_output)
    app.command("up", rich_help_panel="Create and remove a deployment")(up)
    for name, command in (("stop", stop), ("resume", resume)):
        app.command(name, rich_help_panel="Change a run")(command)


def engine_of(target: str, region: str | None) -> Engine:
    """Return the engine of a deployment. A target with a slash or a YAML suffix is a file.

    Raises:
        CommandError: The file is invalid.
    """
    if not is_file_name(target):
        return FleetEngine(target, region)
    file = Path(target)
    config = load(file)
    if config.engine == "slurm":
        from trainstack.slurm.engine import SlurmEngine  # imports the configuration

        return SlurmEngine(read_plan(file, config), file)
    if config.engine in ("pcs", "hyperpod") or config.has_eks_stack:
        from trainstack.clusters.opening import managed_engine

        return managed_engine(config, file, region)
    if config.engine == "kubernetes":
        from trainstack.kubernetes.command import read_plan as read_kubernetes_plan
        from trainstack.kubernetes.engine import KubernetesEngine

        return KubernetesEngine(read_kubernetes_plan(file, config), file)
    return FleetEngine(config.name, region or config.region, file)


def up(
    file: File,
    stacks: Annotated[list[str] | None, typer.Argument(help="Stacks, such as TrainingStack; default: all.")] = None,
    approved: Annotated[
        int, typer.Option(metavar="CODE", help="Approved exit code of the review: 20, 30 or 40.")
    ] = HARMLESS,
    follows: Annotated[bool, typer.Option("--follow/--no-follow", help="Report progress until the run ends.")] = True,
    as_json: Json = False,
) -> None:
    """Validate a file, start or change its run, and follow the run until it ends.

    With engine: fleet, builds the wheels, reviews the change and deploys it. A change with a code above 10 requires
    confirmation on the terminal, or --approved with its code. With engine: slurm, submits jobs, and with engine:
    kubernetes, applies manifests. With engine: pcs or hyperpod, deploys the cluster, and submits jobs on its
    login node, or applies manifests. Ctrl-C ends the command, not the run.
    """
    engine = engine_of(f"./{file}" if not file.is_absolute() else str(file), None)
    engine.submit(Submission(tuple(stacks or ()), approved, follows, as_json))


def show_status(
    name: Target,
    region: Region = None,
    watch: Annotated[bool, typer.Option(help=f"Repeat every {WATCH_SECONDS:.0f} s until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Print a run's phase, step, loss, nodes, newest durable checkpoint and price per hour."""
    engine = engine_of(name, region)
    while True:
        found = engine.observe()
        if as_json:
            print(json.dumps(found.to_json()), flush=True)
        else:
            if watch and console.is_terminal:
                console.clear()
            print("\n".join(found.lines()), flush=True)
        if not watch:
            return
        time.sleep(WATCH_SECONDS)


def explain(name: Target, region: Region = None, as_json: Json = False) -> None:
    """Explain in one sentence why a run is not training, with the evidence and the remedy."""
    found = engine_of(name, region).explain()
    print(json.dumps(found.to_json()) if as_json else "\n".join(found.lines()))


def show_output(
    name: Target,
    region: Region = None,
    node: Annotated[str, typer.Option(help="Only this instance's output.")] = "",
    rank: Annotated[int | None, typer.Option(min=0, help="Only the node with this rank in the gang.")] = None,
    since: Annotated[str, typer.Option(help="Age of the oldest line, such as 30m, 6h or 2d.")] = "1h",
    follow: Annotated[bool, typer.Option(help="Continue until Ctrl-C, even when nodes are replaced.")] = False,
) -> None:
    """Print the trainers' standard output and error. A node of a fleet sends at most 4 KiB per second on average."""
    query = LogQuery(node, rank, span_seconds(since), follow)
    for line in engine_of(name, region).logs(query):
        print(line, flush=True)


def stop(name: Target, region: Region = None, waits: Waits = True, as_json: Json = False) -> None:
    """Save a checkpoint and stop the run until `resume`. A fleet stays scaled to zero, even across deploys."""
    engine_of(name, region).stop(waits=waits, as_json=as_json)


def resume(name: Target, region: Region = None, waits: Waits = False, as_json: Json = False) -> None:
    """Start a stopped run again from its newest checkpoint."""
    engine_of(name, region).resume(waits=waits, as_json=as_json)
