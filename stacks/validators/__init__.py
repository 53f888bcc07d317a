"""Rules across the sections of a deployment file; each returns all its problems."""

from __future__ import annotations

from collections.abc import Sequence

from stacks.config import DeploymentConfig
from stacks.errors import ConfigError, Problem
from stacks.validators import capacity, delivery, market, network, node, observability, run, storage

RULES = (
    *(*capacity.RULES, *market.RULES, *network.RULES, *storage.RULES),
    *(*node.RULES, *run.RULES, *observability.RULES, *delivery.RULES),
)


def problems(config: DeploymentConfig) -> list[Problem]:
    """Return what every rule finds, errors and warnings."""
    return [problem for rule in RULES for problem in rule(config)]


def warnings(config: DeploymentConfig) -> list[Problem]:
    """Return what is worth knowing of a file that is sound."""
    return [problem for problem in problems(config) if problem.severity == "warning"]


def check(config: DeploymentConfig, source: str, known: Sequence[Problem] = ()) -> None:
    """Apply every rule.

    Raises:
        ConfigError: With the problems that are `known` already, and the errors of all rules.
    """
    errors = [*known, *(problem for problem in problems(config) if problem.severity == "error")]
    if errors:
        raise ConfigError(source, errors)
