"""Fills in what a deployment file leaves open: types for `capacity.auto`, and what is locked beside the file.

That is the image of a parameter (`ami.lock.json`), and the nodes' wheels (`wheelhouse.lock.json`).
"""

from __future__ import annotations

from pathlib import Path

from stacks.ami_lock import locked_image
from stacks.config import DeploymentConfig
from stacks.errors import ConfigError, Problem
from stacks.instance_types import catalogue
from stacks.selection import Candidate, candidates, needs_of
from stacks.wheelhouse import LOCK_NAME


def resolve(config: DeploymentConfig, path: Path) -> tuple[DeploymentConfig, list[Problem]]:
    """Return the configuration with types, image and wheelhouse filled in, and what hindered that.

    The same file, code, catalogue and locks give the same.
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
    python = config.node.python
    if python.wheelhouse == "auto" and path.with_name(LOCK_NAME).exists():
        wheelhouse, stale = _locked_wheelhouse(config, path)
        python = python.model_copy(update={"wheelhouse": wheelhouse})
        problems += stale
    resolved = config.model_copy(
        update={
            "capacity": config.capacity.model_copy(update={"instance_types": types}),
            "node": config.node.model_copy(update={"ami": image or config.node.ami, "python": python}),
        }
    )
    return resolved, problems


def _locked_wheelhouse(config: DeploymentConfig, path: Path) -> tuple[str, list[Problem]]:
    from stacks.wheelhouse.lock import locked_wheelhouse  # reads code and requirements, for which few files ask

    try:
        return locked_wheelhouse(config, path)
    except ConfigError as error:
        return config.node.python.wheelhouse, error.problems


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
