"""The command `kubernetes manifests`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainstack.operate.planning import plan_for
from trainstack.session import INVALID, CommandError

if TYPE_CHECKING:  # importing the configuration would double the start-up time of commands such as `status`
    from stacks.config import DeploymentConfig
    from trainstack.kubernetes.plan import Plan

File = Annotated[Path, typer.Argument(help="Deployment file whose run consists of pods.")]


def add(app: typer.Typer) -> None:
    """Add the commands to a command line."""
    group = typer.Typer(help="Show how a deployment file becomes pods.", no_args_is_help=True)
    group.callback()(_group)
    group.command("manifests")(show_manifests)
    app.add_typer(group, name="kubernetes", rich_help_panel="Programs")


def _group() -> None:
    """Keep the name of the only command."""


def show_manifests(
    file: File,
    flavour: Annotated[str, typer.Option(help="job, jobset or trainjob; default: kubernetes.flavour.")] = "",
    kueue: Annotated[str, typer.Option(metavar="QUEUE", help="LocalQueue; default: kubernetes.queue.")] = "",
) -> None:
    """Print the manifests that `trainstack up` applies, as YAML. Uploads nothing and does not contact the cluster."""
    from trainstack.kubernetes.manifests import KINDS, manifest_text, manifests

    plan = read_plan(file)
    chosen = next((each for each in KINDS if each == (flavour or plan.section.flavour)), None)
    if chosen is None:
        raise CommandError(INVALID, f"--flavour: {flavour!r}: must be {', '.join(KINDS)}; correct it")
    print(manifest_text(manifests(plan, chosen, kueue or plan.section.queue)), end="")


def read_plan(file: Path, config: DeploymentConfig | None = None) -> Plan:
    """Return the plan of a file whose run consists of pods. `config`: the file's contents if already loaded.

    Raises:
        CommandError: The file is invalid, or its run does not consist of pods.
    """
    from trainstack.image.reference import with_image
    from trainstack.kubernetes.plan import plan_of

    rule = "kubernetes, or hyperpod with EKS"
    return plan_for(file, lambda read: read.runs_pods, rule, lambda valid: plan_of(with_image(valid, file)), config)
