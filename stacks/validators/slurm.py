"""Rules for the engine and the slurm section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stacks.capacity.catalogue import catalogue
from stacks.capacity.plan import gpus, processes_per_node
from stacks.config import DeploymentConfig
from stacks.config.slurm import SlurmConfig
from stacks.config.sweep import SweepError, members
from stacks.errors import Problem
from stacks.validators.image import uses_image
from stacks.validators.unused import USED_BY_STACKS, unused_keys

USED = (
    *("name", "engine", "slurm", "image", "training", "region"),
    *("capacity.nodes", "capacity.min_nodes", "capacity.instance_types", "capacity.auto", "capacity.market"),
    *("node.python.interpreter", "node.fabric"),
)
"""Keys that have an effect on Slurm jobs, including all keys below them."""
USED_BY: Mapping[str, tuple[str, ...]] = {
    "slurm": USED,
    "pcs": (
        *(*USED, *USED_BY_STACKS, "pcs", "capacity.placement", "capacity.partitions", "capacity.allocation_strategy"),
        *("node.ami", "node.root_device", "node.root_volume"),
    ),
    "hyperpod": (*USED, *USED_BY_STACKS, "hyperpod"),
}
"""Keys that have an effect with each engine that runs Slurm jobs."""
USUAL_ARRAY_LIMIT = 1000
"""Highest index of a job array in Slurm's default configuration. Source (2026-11):
https://slurm.schedmd.com/slurm.conf.html, MaxArraySize"""


def engine_of_section(config: DeploymentConfig) -> Iterator[Problem]:
    """A fleet does not use the slurm section."""
    if config.slurm is not None:
        rule = "has no effect on a fleet"
        yield Problem("slurm", "set", rule, "set engine: slurm, or remove the section", "warning")


FLEET_RULES = (engine_of_section,)


def _section(config: DeploymentConfig) -> SlurmConfig | None:
    return config.slurm if config.runs_slurm_jobs else None


def has_section(config: DeploymentConfig) -> Iterator[Problem]:
    """Slurm jobs need their section."""
    if config.runs_slurm_jobs and config.slurm is None:
        yield Problem(
            "slurm", None, f"is missing, but engine is {config.engine}", "set slurm.directory, or engine: fleet"
        )


def types_are_known(config: DeploymentConfig) -> Iterator[Problem]:
    """The instance types, which determine the job's GPUs, are in the catalogue. The nodes can be in any region."""
    for index, name in enumerate(config.capacity.instance_types if config.engine == "slurm" else ()):
        if name not in catalogue().types:
            remedy = "list a type that `python -m stacks catalogue` prints, or set slurm.gres"
            yield Problem(f"capacity.instance_types.{index}", name, "is not in the catalogue", remedy)


def time_for_save(config: DeploymentConfig) -> Iterator[Problem]:
    """The job has time to train before the signal, which Slurm may send up to 60 s early."""
    slurm = _section(config)
    if slurm is None or slurm.time_limit_minutes is None:
        return
    left = slurm.time_limit_minutes * 60 - slurm.signal_seconds
    if left < 60:
        rule = f"leaves {left} s of the time limit, {slurm.time_limit_minutes} min, for training"
        remedy = "lower it, or raise slurm.time_limit_minutes"
        yield Problem("slurm.signal_seconds", slurm.signal_seconds, rule, remedy)


def whole_node(config: DeploymentConfig) -> Iterator[Problem]:
    """An exclusive job has all cores of its nodes."""
    slurm = _section(config)
    if slurm is not None and slurm.exclusive and slurm.cpus_per_node is not None:
        rule = "applies only to shared nodes, but slurm.exclusive is true"
        yield Problem("slurm.cpus_per_node", slurm.cpus_per_node, rule, "remove it, or set exclusive: false")


def setup_lines(config: DeploymentConfig) -> Iterator[Problem]:
    """Each setup line is a single line, and not an sbatch option."""
    slurm = _section(config)
    for index, line in enumerate(slurm.setup if slurm is not None else ()):
        if "\n" in line or line.lstrip().startswith("#SBATCH"):
            rule = "must be a single line of shell code, and not an #SBATCH option"
            yield Problem(f"slurm.setup.{index}", line, rule, "split it, or use the section's keys")


def sweep(config: DeploymentConfig) -> Iterator[Problem]:
    """Every combination of a sweep is a valid configuration that the run's processes can train."""
    slurm = _section(config)
    if slurm is None:
        return
    if not slurm.sweep:
        if slurm.sweep_parallel is not None:
            yield Problem("slurm.sweep_parallel", slurm.sweep_parallel, "applies only to a sweep", "remove it")
        return
    try:
        found = members(config.training.config, slurm.sweep)
    except SweepError as error:
        for key, rule in error.problems:
            yield Problem(f"slurm.sweep.{key}".rstrip("."), slurm.sweep.get(key), rule, "correct the sweep")
        return
    world = config.capacity.nodes * processes_per_node(config)
    for values, member in found:
        for problem in member.problems_at(world):
            settings = ", ".join(f"{key}={value}" for key, value in values.items())
            yield Problem("slurm.sweep", settings, problem, "correct the sweep")
    if len(found) - 1 > USUAL_ARRAY_LIMIT:
        rule = f"has {len(found)} combinations; most clusters accept arrays up to index {USUAL_ARRAY_LIMIT}"
        yield Problem("slurm.sweep", len(found), rule, "see `scontrol show config | grep MaxArraySize`", "warning")
    long = [name for name in (f"{config.training.run}-{len(found) - 1}",) if len(name) > 40]
    yield from (Problem("training.run", name, "is longer than 40 characters", "shorten it") for name in long)


def data_on_nodes(config: DeploymentConfig) -> Iterator[Problem]:
    """The dataset is a complete folder, because a job does not prepare or stream it."""
    if not config.runs_slurm_jobs:
        return
    if config.training.prepare is not None:
        rule = "is supported only by the nodes of a fleet"
        remedy = "run `python -m training prepare` in a job, set slurm.datasets to its target, and remove the section"
        yield Problem("training.prepare", "set", rule, remedy)
    listed = config.training.dependencies
    if isinstance(listed, list) and listed and not uses_image(config):
        rule = f"are not installed with engine: {config.engine}"
        remedy = "install them in the environment of node.python.interpreter or in the container"
        yield Problem("training.dependencies", ", ".join(listed), rule, remedy, "warning")
    stream = config.training.config.data.stream_cache_gib
    if stream is not None:
        rule = "requires the dataset bucket of a fleet"
        yield Problem("training.config.data.stream_cache_gib", stream, rule, "remove it; the nodes share the dataset")


def limits(config: DeploymentConfig) -> Iterator[Problem]:
    """Cost limits are not silently ignored: only the run controller of a fleet enforces them."""
    if not config.runs_slurm_jobs:
        return
    remedy = "limit the account or the QOS in Slurm (GrpTRESMins), and remove this key"
    for path, value in (
        ("limits.usd", config.limits.usd),
        ("limits.run_hours", config.limits.run_hours),
        ("limits.deadline_hours", config.limits.deadline_hours),
        ("budget.monthly_usd", config.budget.monthly_usd),
    ):
        if value is not None:
            yield Problem(path, value, f"is not enforced with engine: {config.engine}", remedy)


def gpus_known(config: DeploymentConfig) -> Iterator[Problem]:
    """The job requests GPUs if the trainer needs them."""
    slurm = _section(config)
    if slurm is not None and slurm.gres is None and not gpus(config):
        rule = "is not set, and capacity.instance_types lists no type with GPUs, so the job requests no GPU"
        yield Problem("slurm.gres", None, rule, "set it, such as gpu:8, unless the run trains on CPUs", "warning")


def keys_without_effect(config: DeploymentConfig) -> Iterator[Problem]:
    """Keys that the engine does not use are reported."""
    for path in unused_keys(config, USED_BY.get(config.engine, ())) if config.runs_slurm_jobs else ():
        rule = f"has no effect with engine: {config.engine}"
        yield Problem(path, "set", rule, "remove it, unless the file also describes a fleet", "warning")


RULES = (
    *(has_section, types_are_known, time_for_save, whole_node, setup_lines, sweep, data_on_nodes, limits, gpus_known),
    keys_without_effect,
)
