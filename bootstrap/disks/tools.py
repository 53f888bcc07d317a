"""Programs that storage steps need, installed from Amazon Linux's package repository if they are missing."""

from __future__ import annotations

import logging
import threading

from bootstrap.context import Context
from bootstrap.errors import CommandError, NotReadyError, StepError

logger = logging.getLogger(__name__)

INSTALL_SECONDS = 600.0
# The SSM agent updates itself during boot and locks the RPM database during the update.
# Source (2026-11): https://github.com/amazonlinux/amazon-linux-2023/issues/397.
LOCK_SECONDS = 180.0
REPOSITORY = "amazonlinux"
"""The Amazon Linux 2023 repository. Deep learning images also enable repositories on the internet, such as NVIDIA's,
and dnf fails if it cannot reach one of them. Source (2026-11): https://github.com/awslabs/mlmax/issues/53."""
_NEVER = ("Unable to find a match", "Unknown repo")
_installing = threading.Lock()


def require_program(context: Context, program: str, *, package: str, guide: str = "") -> None:
    """Install a program unless it is on PATH.

    The Amazon Linux repository is in S3 in the node's region, so nodes without internet access can reach it. Other
    distributions have no such repository.
    Source: https://docs.aws.amazon.com/linux/al2023/ug/deterministic-upgrades.html (2026-11).

    Args:
        context: The context of the step.
        program: Name of the program.
        package: Name of its Amazon Linux package.
        guide: URL that describes how to install the package.

    Raises:
        StepError: The program is missing and cannot be installed.
    """
    remedy = f"use an image that contains {package}" + (f" ({guide})" if guide else "")
    with _installing:  # steps run concurrently
        if context.system.find_program(program) is not None:
            return
        if context.system.find_program("dnf") is None:
            raise StepError(
                f"{program} (package {package}) is not installed, and nodes can install packages only on Amazon Linux "
                "2023 (the image does not contain dnf)",
                remedy=remedy,
            )
        context.wait_until_ready(lambda: _install(context, package, remedy), limit_seconds=LOCK_SECONDS)


def _install(context: Context, package: str, remedy: str) -> None:
    logger.info("installing %s", package)
    command = ["dnf", "install", "--assumeyes", f"--repo={REPOSITORY}", package]
    try:
        context.system.run(command, timeout_seconds=INSTALL_SECONDS)
    except CommandError as error:
        problem = StepError.from_command(error, message=f"cannot install {package}", remedy=remedy)
        if error.exit_code is None or any(text in error.output_tail for text in _NEVER):
            raise problem from error
        raise NotReadyError.from_step(problem) from error
