"""The commands `slurm script`, `slurm sweep` and `slurm parallelcluster`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainstack.operate.planning import plan_for
from trainstack.session import INVALID, CommandError, Json

if TYPE_CHECKING:  # importing the configuration would double the start of commands such as `status`
    from stacks.config import DeploymentConfig
    from trainstack.slurm.plan import Plan

File = Annotated[Path, typer.Argument(help="Deployment file whose run consists of Slurm jobs.")]


def add(app: typer.Typer) -> None:
    """Add the commands to a command line."""
    group = typer.Typer(help="Show how a deployment file becomes Slurm jobs.", no_args_is_help=True)
    group.command("script")(show_script)
    group.command("sweep")(show_sweep)
    group.command("parallelcluster")(show_cluster)
    app.add_typer(group, name="slurm", rich_help_panel="Programs")


def show_script(
    file: File,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Also write the code and the records, so that you can sbatch the script.")
    ] = False,
) -> None:
    """Print the job script that `trainstack up` submits."""
    from trainstack.slurm.files import write_files
    from trainstack.slurm.script import script_text

    plan = read_plan(file)
    if prepare:
        write_files(plan)
    print(script_text(plan), end="")


def show_sweep(file: File, as_json: Json = False) -> None:
    """List the runs of a sweep: the tasks of the job array, with their settings."""
    plan = read_plan(file)
    if not plan.is_sweep:
        raise CommandError(
            INVALID, f"{file}: slurm.sweep is not set; add it, such as {{optimizer.learning_rate: [1e-3]}}"
        )
    if as_json:
        rows = [{"index": i, "run": each.run, "values": dict(each.values)} for i, each in enumerate(plan.members)]
        print(json.dumps(rows))
        return
    for index, member in enumerate(plan.members):
        settings = "  ".join(f"{key}={value}" for key, value in member.values.items())
        print(f"{index:>5}  {member.run:<24} {settings}")


def show_cluster(
    file: File,
    subnet: Annotated[str, typer.Option(help="Subnet of all nodes, such as subnet-0123456789abcdef0.")],
    head_node_type: Annotated[str, typer.Option(help="Instance type of the head node.")] = "m7i.large",
    file_system: Annotated[
        str | None, typer.Option(help="Existing FSx for Lustre file system; default: the cluster creates one.")
    ] = None,
) -> None:
    """Print a configuration of AWS ParallelCluster with a queue for the jobs, as YAML."""
    from trainstack.slurm.parallelcluster import cluster_text

    for option, value, prefix in (("--subnet", subnet, "subnet-"), ("--file-system", file_system, "fs-")):
        if value is not None and re.fullmatch(f"{prefix}[0-9a-f]{{8,17}}", value) is None:
            raise CommandError(
                INVALID, f"{option}: {value!r}: must be an id, such as {prefix}0123456789abcdef0; correct it"
            )
    print(cluster_text(read_plan(file), subnet, head_node_type, file_system), end="")


def read_plan(file: Path, config: DeploymentConfig | None = None) -> Plan:
    """Return the plan of a file whose run consists of Slurm jobs. `config`: the file's contents if already loaded.

    Raises:
        CommandError: The file is invalid, or its run does not consist of Slurm jobs.
    """
    from trainstack.image.reference import with_image
    from trainstack.slurm.plan import plan_of

    rule = "slurm, pcs, or hyperpod with Slurm"
    return plan_for(
        file, lambda read: read.runs_slurm_jobs, rule, lambda valid: plan_of(with_image(valid, file)), config
    )
