"""Rules that span the sections of a deployment file. Each rule yields all problems that it finds."""

from __future__ import annotations

from contextlib import suppress

from stacks.config import DeploymentConfig
from stacks.config.setting import UndecodedKey
from stacks.errors import Problem
from stacks.validators import (
    capacity,
    deadline,
    delivery,
    market,
    network,
    node,
    observability,
    run,
    slurm,
    storage,
)

FLEET_RULES = (
    *(*capacity.RULES, *market.RULES, *network.RULES, *storage.RULES),
    *(*node.RULES, *run.RULES, *observability.RULES, *deadline.RULES, *delivery.RULES, *slurm.FLEET_RULES),
)
SLURM_RULES = (capacity.one_gpu_model, capacity.gang, *run.RULES, *slurm.RULES)
RULES = (*FLEET_RULES, *slurm.RULES)


def problems(config: DeploymentConfig) -> list[Problem]:
    """Return the errors and warnings from every rule. A rule stops at the first key that failed to decode."""
    found: list[Problem] = []
    is_fleet = config.__dict__.get("engine", "fleet") == "fleet"
    for rule in FLEET_RULES if is_fleet else SLURM_RULES:
        with suppress(UndecodedKey):
            for problem in rule(config):
                found.append(problem)
    return found


def warnings(config: DeploymentConfig) -> list[Problem]:
    """Return the warnings for a valid deployment."""
    return [problem for problem in problems(config) if problem.severity == "warning"]
