"""Fills in a deployment file's unset keys: the types for `capacity.auto`, and the image and wheels from the lock files.

The same file, code, catalogue and lock files (`ami.lock.json`, `wheelhouse.lock.json`) always produce the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from stacks.artifacts.wheelhouse import LOCK_NAME
from stacks.capacity.catalogue import catalogue
from stacks.capacity.selection import Candidate, candidates, needs_of
from stacks.capacity.zones import default_zones
from stacks.config import DeploymentConfig
from stacks.config.setting import UndecodedKey
from stacks.errors import ConfigError, Problem
from stacks.loading.ami_lock import locked_image
from stacks.validators.node import named_image


def resolve(config: DeploymentConfig, path: Path) -> tuple[DeploymentConfig, list[Problem]]:
    """Return the deployment with types, image and wheelhouse filled in, and the problems that were found.

    A key stays unset if it depends on an invalid key.
    """
    problems: list[Problem] = []
    engine = config.__dict__.get("engine", "fleet")
    has_eks = engine == "kubernetes" and config.__dict__.get("eks") is not None
    steps = _STEPS_OF.get("eks" if has_eks else engine, (_instance_types,))
    for step in steps:
        with suppress(UndecodedKey):
            config, found = step(config, path)
            problems += found
    return config, problems


def _zones(config: DeploymentConfig, path: Path) -> tuple[DeploymentConfig, list[Problem]]:
    network = config.network
    if network.zones or network.existing is not None:
        return config, []
    zones = default_zones(config.region)
    return config.model_copy(update={"network": network.model_copy(update={"zones": zones})}), []


def _instance_types(config: DeploymentConfig, path: Path) -> tuple[DeploymentConfig, list[Problem]]:
    capacity = config.capacity
    if capacity.auto is None:
        return config, []
    if capacity.instance_types:
        rule = "lists types, but capacity.auto also chooses types"
        listed = ", ".join(capacity.instance_types)
        return config, [Problem("capacity.instance_types", listed, rule, "set only one of the two")]
    if config.region not in catalogue().regions:
        rule = "the catalogue does not contain types in this region"
        remedy = f"list capacity.instance_types, or run `python -m stacks catalogue refresh --regions {config.region}`"
        return config, [Problem("region", config.region, rule, remedy)]
    needs = needs_of(config, capacity.auto)
    results = candidates(needs, config.region)
    chosen = [one.instance_type.name for one in results if one.chosen]
    if not chosen:
        closest = "; ".join(f"{one.instance_type.name}: {one.reason}" for one in _closest(results, needs.gpus))
        rule = f"no catalogued type in {config.region} fits ({closest})"
        remedy = "lower the requirements; `python -m stacks candidates FILE` explains each rejected type"
        return config, [Problem("capacity.auto", f"{needs.gpus} GPUs with {needs.gib_per_gpu:.1f} GiB", rule, remedy)]
    return config.model_copy(update={"capacity": capacity.model_copy(update={"instance_types": chosen})}), []


def _closest(results: list[Candidate], gpus: int) -> list[Candidate]:
    same = [one for one in results if one.instance_type.gpus == gpus] or results
    return sorted(same, key=lambda one: -one.instance_type.gib_per_gpu)[:3]


def _image(config: DeploymentConfig, path: Path) -> tuple[DeploymentConfig, list[Problem]]:
    try:
        image = locked_image(path, config.region, config.node.ami)
    except ConfigError as error:
        return config, error.problems
    if image is None:
        return config, []
    problems = list(named_image(config))  # the id does not reveal these
    return config.model_copy(update={"node": config.node.model_copy(update={"ami": image})}), problems


def _wheelhouse(config: DeploymentConfig, path: Path) -> tuple[DeploymentConfig, list[Problem]]:
    python = config.node.python
    if python.wheelhouse != "auto" or not path.with_name(LOCK_NAME).exists():
        return config, []
    code = config.training.code
    if code is not None and not Path(code).is_dir():  # a validator reports it
        return config, []
    from stacks.artifacts.wheelhouse.lock import locked_wheelhouse  # a slow import that few files need

    try:
        digest, problems = locked_wheelhouse(config, path)
    except ConfigError as error:
        return config, error.problems
    node = config.node.model_copy(update={"python": python.model_copy(update={"wheelhouse": digest})})
    return config.model_copy(update={"node": node}), problems


def _trackers(config: DeploymentConfig, path: Path) -> tuple[DeploymentConfig, list[Problem]]:
    observation = config.training.config.observation
    if not (observation.wandb or observation.mlflow):
        return config, []
    from stacks.artifacts.wheelhouse.dependencies import tracker_problems  # a slow import that few files need

    return config, tracker_problems(config)


_Step = Callable[[DeploymentConfig, Path], tuple[DeploymentConfig, list[Problem]]]
_STEPS_OF: Mapping[str, Sequence[_Step]] = {
    "fleet": (_zones, _instance_types, _image, _trackers, _wheelhouse),
    "pcs": (_zones, _instance_types),
    "hyperpod": (_zones, _instance_types),
    "eks": (_zones, _instance_types),
}
"""The steps of each engine with stacks. The other engines do not launch instances."""
