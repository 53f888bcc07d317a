"""Rules for the training section, checked against the deployment's capacity."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stacks.capacity.gpu_memory import from_shape
from stacks.capacity.plan import gpus, known_types, processes_per_node
from stacks.config import DeploymentConfig
from stacks.errors import Problem


def batch_covers_processes(config: DeploymentConfig) -> Iterator[Problem]:
    """Every process has at least one sequence in each step."""
    world = config.capacity.nodes * processes_per_node(config)
    batch = config.training.config.global_batch_size
    if batch < world:
        rule = f"must be at least {world}, because each of the run's processes needs a sequence in every step"
        yield Problem("training.config.global_batch_size", batch, rule, "raise it, or use fewer nodes")


def processes_fit(config: DeploymentConfig) -> Iterator[Problem]:
    """Each process has a GPU, and each GPU has a process."""
    processes, available = processes_per_node(config), gpus(config)
    path = "training.processes_per_node"
    if available and processes > available:
        rule = f"must be at most {available}, the number of GPUs per node"
        yield Problem(path, processes, rule, "lower it, or remove it to run one process per GPU")
    if processes < available:
        rule = f"leaves {available - processes} of {available} billed GPUs idle"
        yield Problem(path, processes, rule, "remove it, or use smaller instance types", "warning")


def model_fits(config: DeploymentConfig) -> Iterator[Problem]:
    """Weights, gradients, optimizer state and activations fit on one GPU.

    A violation is only a warning because the required memory is an estimate.
    """
    known = [one for one in known_types(config) if one.gpus]
    smallest = min(known, key=lambda one: one.gib_per_gpu, default=None)
    if smallest is None:
        return
    training = config.training.config
    shape = training.model.shape
    needed = from_shape(shape, training.min_micro_batch_size * shape.sequence_length)
    if needed.total_gib > smallest.gib_per_gpu:
        rule = (
            f"requires about {needed.total_gib:.1f} GiB of GPU memory ({needed}), but {smallest.name} has "
            f"{smallest.gib_per_gpu:.1f} GiB per GPU"
        )
        remedy = "lower it (the global batch size does not change), or use a larger GPU"
        yield Problem("training.config.micro_batch_size", training.micro_batch_size, rule, remedy, "warning")


def settings_that_need_gpus(config: DeploymentConfig) -> Iterator[Problem]:
    """Settings that the trainer rejects without a GPU are used only with GPUs."""
    if all(one.gpus for one in known_types(config)):
        return
    training = config.training.config
    for name, value, gpu_only, remedy in (
        ("micro_batch_size", training.micro_batch_size, ("auto",), "set a number, such as 8"),
        ("precision", training.precision, ("fp16", "tf32"), "set auto, fp32 or bf16"),
        ("execution.attention", training.execution.attention, ("cudnn", "memory_efficient"), "set auto"),
    ):
        if value in gpu_only:
            rule = "requires a GPU, but some types in capacity.instance_types do not have one"
            yield Problem(f"training.config.{name}", value, rule, f"{remedy}, or use types with GPUs")


def code_folder_exists(config: DeploymentConfig) -> Iterator[Problem]:
    """The user code folder exists in the repository, so that a deployment file cannot publish other files."""
    code = config.training.code
    if code is None:
        return
    if Path(code).is_absolute() or not Path(code).resolve().is_relative_to(Path.cwd()):
        rule = "must be the relative path of a folder in the current directory"
        yield Problem("training.code", code, rule, "move the code into the repository")
    elif not Path(code).is_dir():
        remedy = "set the folder with your code, as a path from the current folder, or remove the key"
        yield Problem("training.code", code, "is not a folder", remedy)


def code_contains_functions(config: DeploymentConfig) -> Iterator[Problem]:
    """A script must be part of the user code. A module may be installed in the image instead."""
    training, settings = config.training, config.training.config
    folder = None if training.code is None else Path(training.code)
    where = "the training.code folder" if training.code is not None else "training.code, which is not set"
    if settings.entrypoint is not None and (folder is None or not (folder / settings.entrypoint).is_file()):
        rule = f"is not in {where}"
        yield Problem("training.config.entrypoint", settings.entrypoint, rule, "add it there, or correct the path")
    functions = {"config.model.function": settings.model.function, "config.data.function": settings.data.function}
    functions["prepare.function"] = None if training.prepare is None else training.prepare.function
    for key, function in functions.items():
        if function is None:
            continue
        top = function.partition(":")[0].partition(".")[0]
        if top == "training":  # part of the trainer
            continue
        if folder is None or not ((folder / f"{top}.py").is_file() or (folder / top).is_dir()):
            rule = f"module {top} is not in {where}"
            yield Problem(f"training.{key}", function, rule, "add it there, unless the image contains it", "warning")


def source_is_raw(config: DeploymentConfig) -> Iterator[Problem]:
    """Prepared data is not part of its own source. Otherwise, each preparation would trigger another one."""
    prepare = config.training.prepare
    if prepare is not None and (prepare.source == "datasets" or f"{prepare.source}/".startswith("datasets/prepared/")):
        rule = "overlaps with datasets/prepared/, where prepared data is stored"
        remedy = "keep raw objects elsewhere, such as raw/my-text"
        yield Problem("training.prepare.source", prepare.source, rule, remedy)


RULES = (
    batch_covers_processes,
    processes_fit,
    model_fits,
    settings_that_need_gpus,
    code_folder_exists,
    code_contains_functions,
    source_is_raw,
)
