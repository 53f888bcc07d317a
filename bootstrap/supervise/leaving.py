"""Final actions after the supervisor has stopped: wait for EC2, complete the lifecycle action and shut down."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bootstrap.aws import AWS_ERRORS
from bootstrap.context import Context
from bootstrap.documents import TERMINATING_HOOK
from bootstrap.errors import CommandError, MetadataError
from bootstrap.imds import TERMINATED, InstanceIdentity

logger = logging.getLogger(__name__)

LONGEST_WAIT_SECONDS = 300.0
"""Limit for `wait_for_reclaim`: AWS's notice period plus the time within which EC2 must react."""


def complete_hook(context: Context, identity: InstanceIdentity) -> None:
    """Complete the terminating lifecycle action. The Auto Scaling group may then terminate the instance immediately."""
    group = identity.auto_scaling_group
    if group is None:
        logger.warning("no Auto Scaling group in the instance tags: the lifecycle hook will time out")
        return
    try:
        # The instance costs money until it shuts down, so an unresponsive endpoint must not delay the shutdown for
        # long.
        context.aws.client("autoscaling", patience="low").complete_lifecycle_action(
            AutoScalingGroupName=group,
            LifecycleHookName=TERMINATING_HOOK,
            InstanceId=identity.instance_id,
            LifecycleActionResult="CONTINUE",
        )
    except AWS_ERRORS as error:
        logger.warning("%s: cannot complete the lifecycle action: %s", group, error)


def complete_hook_if_terminating(context: Context) -> None:
    """Complete the hook if the group is terminating this instance. Called before a shutdown because of a failure.

    Otherwise there is no hook to complete: the group starts the hook only after it detects that the instance has
    terminated.
    """
    try:
        state = context.metadata.target_lifecycle_state()
    except MetadataError as error:
        logger.warning("%s", error)
        return
    if state == TERMINATED and context.identity is not None:
        complete_hook(context, context.identity)


def wait_for_reclaim(context: Context, until_unix: float, signalled: Sequence[float]) -> tuple[bool, bool]:
    """Wait until EC2 reclaims this instance, which then terminates without any action by this node.

    Returns:
        Whether the Auto Scaling group is terminating the instance, and whether the node must shut down: EC2 has not
        reclaimed the instance in time, or the group is terminating it. A signal means that the machine shuts down.
    """
    system = context.system
    seconds = min(max(0.0, until_unix - system.unix_seconds()), LONGEST_WAIT_SECONDS)
    deadline = system.monotonic_seconds() + seconds
    logger.info("waiting up to %.0f s for EC2 to reclaim the instance, in which case AWS does not bill it", seconds)
    while system.monotonic_seconds() < deadline:
        if signalled:
            return False, False
        try:
            if context.metadata.target_lifecycle_state() == TERMINATED:
                return True, True
        except MetadataError as error:
            logger.warning("%s", error)
        system.sleep(1.0)
    logger.warning("EC2 has not reclaimed the instance in %.0f s; shutting down", seconds)
    return False, True


def shut_down(context: Context) -> None:
    """Shut down. A failure is logged as critical."""
    try:
        context.system.shut_down()
    except CommandError as error:
        logger.critical("cannot shut down the instance; it still incurs charges: %s %s", error, error.output_tail)
