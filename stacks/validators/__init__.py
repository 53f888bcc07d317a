"""Rules across the sections of a deployment file; each returns all its problems."""

from __future__ import annotations

from stacks.config import DeploymentConfig
from stacks.errors import ConfigError
from stacks.validators import capacity, node, run

RULES = (*capacity.RULES, *node.RULES, *run.RULES)


def check(config: DeploymentConfig, source: str) -> None:
    """Apply every rule.

    Raises:
        ConfigError: With the problems of all rules.
    """
    problems = [problem for rule in RULES for problem in rule(config)]
    if problems:
        raise ConfigError(source, problems)
