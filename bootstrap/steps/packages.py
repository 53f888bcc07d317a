"""Programs that a boot step needs, installed where the image's own package repository has them."""

from __future__ import annotations

import logging

from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context

logger = logging.getLogger(__name__)

INSTALL_SECONDS = 600.0


def need_program(context: Context, program: str, *, package: str) -> None:
    """Make sure that a program is on PATH.

    Amazon Linux serves its packages from S3 in the region, so that a node without internet reaches them.
    Source: https://docs.aws.amazon.com/linux/al2023/ug/deterministic-upgrades.html (2026-11).

    Raises:
        StepError: The image lacks it, and it cannot be installed.
    """
    if context.system.find_program(program) is not None:
        return
    remedy = f"use an image with {package}"
    if context.system.find_program("dnf") is None:
        raise StepError(f"the image has no {program} (package {package})", remedy=remedy)
    logger.info("%s is installed", package)
    try:
        context.system.run(["dnf", "install", "--assumeyes", package], timeout_seconds=INSTALL_SECONDS)
    except CommandError as error:
        raise StepError.from_command(error, message=f"{package} cannot be installed", remedy=remedy) from error
