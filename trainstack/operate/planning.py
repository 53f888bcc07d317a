"""Plans of deployment files whose runs are jobs or pods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stacks.errors import BundleError
from trainstack.operate.deploying import load
from trainstack.session import INVALID, CommandError

if TYPE_CHECKING:  # importing the configuration would double the start-up time of commands such as `status`
    from stacks.config import DeploymentConfig

Plan = TypeVar("Plan")


def plan_for(
    file: Path,
    is_planned: Callable[[DeploymentConfig], bool],
    rule: str,
    plan_of: Callable[[DeploymentConfig], Plan],
    config: DeploymentConfig | None = None,
) -> Plan:
    """Return a file's plan.

    Args:
        file: The deployment file. Its warnings are printed when it is loaded here.
        is_planned: Whether a file has such a plan.
        rule: The engines of the files with such a plan.
        plan_of: Creates the plan.
        config: The file's contents if already loaded.

    Raises:
        CommandError: The file is invalid, or has no such plan.
    """
    config = config or load(file)
    if not is_planned(config):
        raise CommandError(INVALID, f"{file}: engine: {config.engine!r}: must be {rule} for this command")
    try:
        return plan_of(config)
    except BundleError as error:
        raise CommandError(INVALID, str(error)) from error
