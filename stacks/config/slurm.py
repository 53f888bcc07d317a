"""The `slurm` section: how `engine: slurm` submits the run to a Slurm cluster.

Source of the options (2026-11): https://slurm.schedmd.com/sbatch.html
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stacks.config.setting import Section, section, setting

# None of the patterns permits spaces, quotes or shell characters, because the values become part of a shell script.
WORD = r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,99}$"
FOLDER = r"^/[A-Za-z0-9_./+@-]{0,255}$"
GRES = r"^gpu(:[A-Za-z][A-Za-z0-9_.-]*)?:[1-9][0-9]{0,2}$"


class ContainerConfig(Section):
    """The container that the trainers run in."""

    image: str | None = setting(
        "Image of the container: `REGISTRY#NAME:TAG` or a squashfs file for `pyxis`, `docker://NAME:TAG` or a SIF file "
        "for `apptainer`; `null`: the image of the `image` section.",
        edit="applies to new jobs",
        default=None,
        pattern=r"^[A-Za-z0-9_./:#@+-]{1,300}$",
    )
    runtime: Literal["pyxis", "apptainer"] = setting(
        "Program that starts the container: Slurm's Pyxis plugin with Enroot, or Apptainer.",
        edit="applies to new jobs",
        default="pyxis",
    )
    mounts: list[Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./+@-]*(:/[A-Za-z0-9_./+@-]*)?$")]] = setting(
        "Additional folders to mount, as FOLDER or FOLDER:TARGET. `slurm.directory`, the dataset, and checkpoints in "
        "a folder are always mounted.",
        edit="applies to new jobs",
        default=[],
    )


class SlurmConfig(Section):
    """The run's jobs on a Slurm cluster. Required by `engine: slurm`."""

    directory: str = setting(
        "Folder that all nodes and the login node share, such as `/fsx/trainstack/my-run`. It holds the code, the logs "
        "and the records of the run's jobs.",
        edit="applies to new jobs",
        pattern=FOLDER,
    )
    datasets: str | None = setting(
        "Folder on the nodes that contains the dataset's folder; `null`: `datasets/` in `directory`.",
        edit="applies to new jobs",
        default=None,
        pattern=FOLDER,
    )
    checkpoints: str | None = setting(
        "Checkpoint store, to which the run's name is appended: a shared folder, `s3://bucket/prefix`, or FOLDER,URL "
        "for a local and a durable tier; `null`: `checkpoints/` in `directory`.",
        edit="applies to new jobs",
        default=None,
        pattern=r"^(/[A-Za-z0-9_./+@-]+,)?(/[A-Za-z0-9_./+@-]+|s3://[a-z0-9][a-z0-9.-]+(/[A-Za-z0-9_./+-]+)?)$",
    )
    partition: str | None = setting(
        "Partition (`--partition`); `null`: the cluster's default.",
        edit="applies to new jobs",
        default=None,
        pattern=r"^[A-Za-z0-9_.-]+(,[A-Za-z0-9_.-]+)*$",
    )
    account: str | None = setting(
        "Account to charge (`--account`); `null`: the user's default.",
        edit="applies to new jobs",
        default=None,
        pattern=WORD,
    )
    qos: str | None = setting(
        "Quality of service (`--qos`); `null`: the default.", edit="applies to new jobs", default=None, pattern=WORD
    )
    constraint: str | None = setting(
        "Features that nodes must have (`--constraint`), such as `h100&efa`; `null`: none.",
        edit="applies to new jobs",
        default=None,
        pattern=r"^[A-Za-z0-9_.&|()\[\]*-]+$",
    )
    reservation: str | None = setting(
        "Reservation (`--reservation`); `null`: none.", edit="applies to new jobs", default=None, pattern=WORD
    )
    gres: str | None = setting(
        "GPUs per node (`--gres`), such as `gpu:8` or `gpu:a100:4`; `null`: the number of GPUs of "
        "`capacity.instance_types`, or none if no types are listed.",
        edit="applies to new jobs",
        default=None,
        pattern=GRES,
    )
    exclusive: bool = setting(
        "Do not share nodes with other jobs (`--exclusive`).", edit="applies to new jobs", default=True
    )
    cpus_per_node: int | None = setting(
        "Cores per node for shared nodes; `null`: the cluster's default, or all cores of an exclusive node.",
        edit="applies to new jobs",
        default=None,
        ge=1,
    )
    memory_gib: int | None = setting(
        "Memory per node, GiB (`--mem`); `null`: the cluster's default, or all memory of an exclusive node.",
        edit="applies to new jobs",
        default=None,
        ge=1,
    )
    time_limit_minutes: int | None = setting(
        "Time limit of one job, minutes (`--time`). The run continues in the next job; `null`: the partition's limit.",
        edit="applies to new jobs",
        default=None,
        ge=2,
    )
    signal_seconds: int = setting(
        "Seconds before the time limit at which the job saves and stops (`--signal`). Slurm may send the signal 60 s "
        "earlier.",
        edit="applies to new jobs",
        default=300,
        ge=10,
        le=65535,
    )
    continue_by: Literal["resubmit", "requeue", "spare"] = setting(
        "How a run continues after a time limit or a preemption. `resubmit`: the job submits its successor, which "
        "Slurm can start at once. `requeue`: the job requeues itself and keeps its number, but Slurm holds it for two "
        "minutes. `spare`: each job submits its successor at its start; the successor waits until the job ends, so "
        "it also starts after a failure that leaves no time to run a command.",
        edit="applies to new jobs",
        default="resubmit",
    )
    max_failures: int = setting(
        "Number of consecutive failures without a new checkpoint after which the run fails. Preemptions, time limits "
        "and lost nodes do not count.",
        edit="applies to new jobs",
        default=3,
        ge=1,
        le=100,
    )
    launch: Literal["launcher", "srun"] = setting(
        "Program that starts the trainer's processes: the launcher (a replacement for torchrun) with one task per "
        "node, or srun with one task per process.",
        edit="applies to new jobs",
        default="launcher",
    )
    container: ContainerConfig | None = section(
        "Container that the trainers run in; `null`: no container.", edit="applies to new jobs"
    )
    host_python: str = setting(
        "Python interpreter, 3.9 or newer, on the nodes, outside any container; it runs the job's own commands.",
        edit="applies to new jobs",
        default="python3",
        pattern=r"^[A-Za-z0-9_./-]+$",
    )
    setup: list[Annotated[str, Field(max_length=500)]] = setting(
        "Shell lines that the job executes first, such as `module load cuda`.",
        edit="applies to new jobs",
        default=[],
        max_length=50,
    )
    watch_spot_notices: bool = setting(
        "Poll each node's instance metadata service for spot interruption notices. The job then saves and continues "
        "without the node.",
        edit="applies to new jobs",
        default=True,
    )
    health_check: bool = setting(
        "Check each node's GPUs with nvidia-smi and the kernel log before training, and avoid nodes with faults.",
        edit="applies to new jobs",
        default=True,
    )
    sweep: dict[str, list[Any]] = setting(
        "Lists of values for keys of `training.config`, such as `{optimizer.learning_rate: [1e-3, 3e-4]}`. Each "
        "combination of values is a separate run, named `training.run` plus the combination's number, and one task of "
        "a job array. `{}`: a single run.",
        edit="applies to new jobs",
        default={},
    )
    sweep_parallel: int | None = setting(
        "Maximum number of runs of a sweep that train at the same time; `null`: no limit.",
        edit="applies to new jobs",
        default=None,
        ge=1,
    )
