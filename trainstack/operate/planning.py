"""Plans of deployment files whose runs are jobs or pods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    engines: Sequence[str],
    plan_of: Callable[[DeploymentConfig], Plan],
    config: DeploymentConfig | None = None,
) -> Plan:
    """Return a file's plan for an engine.

    Args:
        file: The deployment file. Its warnings are printed when it is loaded here.
        engines: The engines that the file may have.
        plan_of: Creates the plan.
        config: The file's contents if already loaded.

    Raises:
        CommandError: The file is invalid, or has another engine.
    """
    config = config or load(file)
    if config.engine not in engines:
        raise CommandError(
            INVALID, f"{file}: engine: {config.engine!r}: must be {' or '.join(engines)} for this command"
        )
    try:
        return plan_of(config)
    except BundleError as error:
        raise CommandError(INVALID, str(error)) from error
