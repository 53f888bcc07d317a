"""Fills in what a deployment file leaves open: `capacity.auto` becomes types, a locked image parameter its image."""

from __future__ import annotations

from pathlib import Path

from stacks.ami_lock import locked_image
from stacks.config import DeploymentConfig
from stacks.errors import ConfigError, Problem
from stacks.instance_types import catalogue
from stacks.selection import Candidate, candidates, needs_of


def resolve(config: DeploymentConfig, path: Path) -> tuple[DeploymentConfig, list[Problem]]:
    """Return the configuration with types and image filled in, and what hindered that.

    The same file, catalogue and lock give the same.
    """
    problems: list[Problem] = []
    types = list(config.capacity.instance_types)
    if config.capacity.auto is not None and types:
        rule = "types are listed, and capacity.auto chooses them too"
        problems.append(Problem("capacity.instance_types", ", ".join(types), rule, "drop one of the two"))
    elif config.capacity.auto is not None:
        types, problem = _chosen(config)
        problems += [problem] if problem else []
    image = None
    try:
        image = locked_image(path, config.region, config.node.ami)
    except ConfigError as error:
        problems += error.problems
    resolved = config.model_copy(
        update={
            "capacity": config.capacity.model_copy(update={"instance_types": types}),
            "node": config.node.model_copy(update={"ami": image or config.node.ami}),
        }
    )
    return resolved, problems


def _chosen(config: DeploymentConfig) -> tuple[list[str], Problem | None]:
    assert config.capacity.auto is not None
    if config.region not in catalogue().regions:
        rule = "the catalogue has no types of this region to choose from"
        remedy = f"list capacity.instance_types, or `python -m stacks catalogue refresh --regions {config.region}`"
        return [], Problem("region", config.region, rule, remedy)
    needs = needs_of(config, config.capacity.auto)
    answers = candidates(needs, config.region)
    taken = [one.instance_type.name for one in answers if one.taken]
    if taken:
        return taken, None
    nearest = "; ".join(f"{one.instance_type.name}: {one.reason}" for one in _nearest(answers, needs.gpus))
    rule = f"no catalogued type of {config.region} fits ({nearest})"
    remedy = "ask for less; `python -m stacks candidates FILE` prints why each type is refused"
    return [], Problem("capacity.auto", f"{needs.gpus} GPUs of {needs.gib_of_a_gpu:.1f} GiB", rule, remedy)


def _nearest(answers: list[Candidate], gpus: int) -> list[Candidate]:
    same = [one for one in answers if one.instance_type.gpus == gpus] or answers
    return sorted(same, key=lambda one: -one.instance_type.gib_of_a_gpu)[:3]
