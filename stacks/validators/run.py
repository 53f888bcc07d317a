"""Rules of the training section against the capacity it is to run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stacks.config import DeploymentConfig
from stacks.errors import Problem
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


def code_is_there(config: DeploymentConfig) -> Iterator[Problem]:
    """The folder of the user's code must exist."""
    code = config.training.code
    if code is not None and not Path(code).is_dir():
        yield Problem("training.code", code, "is not a folder", "give the folder that holds your code, or drop it")


RULES = (batch_is_enough, processes_fit, code_is_there)
