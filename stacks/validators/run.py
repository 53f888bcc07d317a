"""Rules of the training section against the capacity it is to run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stacks.config import DeploymentConfig
from stacks.errors import Problem
from stacks.gpu_memory import from_shape
from stacks.instance_types import catalogue


def processes_per_node(config: DeploymentConfig) -> int:
    """Return how many trainer processes a node runs: as said, else one a GPU, else one."""
    if config.training.processes_per_node is not None:
        return config.training.processes_per_node
    return max(gpus(config), 1)


def gpus(config: DeploymentConfig) -> int:
    """Return how many GPUs every node has at least."""
    types = catalogue().types
    return min((types[name].gpus for name in config.capacity.instance_types if name in types), default=0)


def batch_is_enough(config: DeploymentConfig) -> Iterator[Problem]:
    """Every process needs a sequence in every step."""
    world = config.capacity.nodes * processes_per_node(config)
    batch = config.training.config.global_batch_sequences
    if batch < world:
        rule = f"is less than the {world} processes of the run, each of which needs a sequence a step"
        yield Problem("training.config.global_batch_sequences", batch, rule, "raise it, or use fewer nodes")


def processes_fit(config: DeploymentConfig) -> Iterator[Problem]:
    """Two processes cannot share a GPU."""
    asked, have = processes_per_node(config), gpus(config)
    if have and asked > have:
        rule = f"is more than the {have} GPUs of a node"
        yield Problem("training.processes_per_node", asked, rule, "lower it, or leave it out: one process a GPU")
    if asked < have:
        rule = f"leaves {have - asked} of {have} GPUs idle, which are paid for"
        remedy = "leave it out, or take smaller types"
        yield Problem("training.processes_per_node", asked, rule, remedy, "warning")


def model_fits(config: DeploymentConfig) -> Iterator[Problem]:
    """Weights, gradients, optimizer and activations must fit on one GPU: the estimate is a warning, no verdict."""
    types = catalogue().types
    known = [types[name] for name in config.capacity.instance_types if name in types and types[name].gpus]
    smallest = min(known, key=lambda one: one.gib_of_a_gpu, default=None)
    if smallest is None:
        return
    training = config.training.config
    shape = training.model.shape
    needed = from_shape(shape, training.least_micro_batch_sequences * shape.context)
    if needed.total_gib > smallest.gib_of_a_gpu:
        rule = (
            f"takes about {needed.total_gib:.1f} GiB of a GPU ({needed}), and {smallest.name} has "
            f"{smallest.gib_of_a_gpu:.1f}"
        )
        remedy = "lower it (the global batch stays), or take a larger GPU"
        yield Problem("training.config.micro_batch_sequences", training.micro_batch_sequences, rule, remedy, "warning")


def settings_have_their_gpu(config: DeploymentConfig) -> Iterator[Problem]:
    """Some settings mean nothing without a GPU, and the trainer would refuse them on every node."""
    types = catalogue().types
    if all(types[name].gpus for name in config.capacity.instance_types if name in types):
        return
    training = config.training.config
    for name, value, wrong, remedy in (
        ("micro_batch_sequences", training.micro_batch_sequences, ("auto",), "give a number, such as 8"),
        ("precision", training.precision, ("fp16", "tf32"), "say auto, fp32 or bf16"),
        ("execution.attention", training.execution.attention, ("cudnn", "memory_efficient"), "say auto"),
    ):
        if value in wrong:
            rule = "needs a GPU, and not every type of capacity.instance_types has one"
            yield Problem(f"training.config.{name}", value, rule, f"{remedy}, or take types with GPUs")


def code_is_there(config: DeploymentConfig) -> Iterator[Problem]:
    """The folder of the user's code must exist."""
    code = config.training.code
    if code is not None and not Path(code).is_dir():
        yield Problem("training.code", code, "is not a folder", "give the folder that holds your code, or drop it")


def code_holds_what_is_named(config: DeploymentConfig) -> Iterator[Problem]:
    """A script must be among the user's code; a module may be installed on the image instead."""
    training, settings = config.training, config.training.config
    folder = None if training.code is None else Path(training.code)
    where = "the folder of training.code" if training.code is not None else "training.code, which is not given"
    if settings.entrypoint is not None and (folder is None or not (folder / settings.entrypoint).is_file()):
        rule = f"is not in {where}"
        yield Problem("training.config.entrypoint", settings.entrypoint, rule, "put it there, or correct the path")
    named = {"config.model.function": settings.model.function, "config.data.function": settings.data.function}
    named["prepare.function"] = None if training.prepare is None else training.prepare.function
    for key, function in named.items():
        if function is None:
            continue
        top = function.partition(":")[0].partition(".")[0]
        if top == "training":  # comes with the trainer
            continue
        if folder is None or not ((folder / f"{top}.py").is_file() or (folder / top).is_dir()):
            rule = f"has module {top}, which is not in {where}"
            remedy = "put it there, unless the image has it"
            yield Problem(f"training.{key}", function, rule, remedy, "warning")


def source_is_raw(config: DeploymentConfig) -> Iterator[Problem]:
    """What is prepared must not lie in what it is prepared from: each preparation would call for another."""
    prepare = config.training.prepare
    if prepare is not None and (prepare.source == "datasets" or f"{prepare.source}/".startswith("datasets/prepared/")):
        rule = "has to do with datasets/prepared/, where prepared data go"
        yield Problem(
            "training.prepare.source", prepare.source, rule, "keep raw objects elsewhere, such as raw/my-text"
        )


RULES = (
    batch_is_enough,
    processes_fit,
    model_fits,
    settings_have_their_gpu,
    code_is_there,
    code_holds_what_is_named,
    source_is_raw,
)
