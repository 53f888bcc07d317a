"""Rules that span the sections of a deployment file. Each rule yields all problems that it finds."""

from __future__ import annotations

import os
from contextlib import suppress

from stacks.config import DeploymentConfig
from stacks.config.setting import UndecodedKey
from stacks.errors import Problem
from stacks.validators import (
    capacity,
    deadline,
    delivery,
    image,
    kubernetes,
    market,
    network,
    node,
    observability,
    pipeline,
    run,
    slots,
    slurm,
    storage,
)
from stacks.validators.rehearsal import rehearsal

FLEET_RULES = (
    *(*capacity.RULES, *market.RULES, *network.RULES, *storage.RULES),
    *(*node.RULES, *run.RULES, *observability.RULES, *deadline.RULES, *delivery.RULES, *slurm.FLEET_RULES),
    *(*kubernetes.OTHER_ENGINES_RULES, *image.FLEET_RULES, *slots.RULES, *pipeline.RULES),
)
_COMMON_RULES = (capacity.one_gpu_model, capacity.gang, *run.RULES, *image.RULES)
_RULES_OF = {
    "fleet": FLEET_RULES,
    "slurm": (
        *_COMMON_RULES,
        *slurm.RULES,
        *kubernetes.OTHER_ENGINES_RULES,
        *slots.OTHER_ENGINES_RULES,
        pipeline.engine,
    ),
    "kubernetes": (*_COMMON_RULES, *kubernetes.RULES, *slots.OTHER_ENGINES_RULES, pipeline.engine),
}
RULES = (*FLEET_RULES, *slurm.RULES, *kubernetes.RULES, *image.RULES, *slots.OTHER_ENGINES_RULES)


def problems(config: DeploymentConfig) -> list[Problem]:
    """Return the errors and warnings from every rule. A rule stops at the first key that failed to decode."""
    found: list[Problem] = []
    for rule in _RULES_OF[config.__dict__.get("engine", "fleet")]:
        with suppress(UndecodedKey):
            for problem in rule(config):
                found.append(problem)
    return found


def warnings(config: DeploymentConfig) -> list[Problem]:
    """Return the warnings for a valid deployment. They depend on whether calls go to an embedded cloud."""
    found = [problem for problem in problems(config) if problem.severity == "warning"]
    return [*found, *rehearsal(config, os.environ)]
