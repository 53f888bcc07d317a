"""What is left to do for a machine whose supervisor has ended: its life-cycle action, and to give it back."""

from __future__ import annotations

import logging

from bootstrap.aws import AWS_ERRORS
from bootstrap.documents import TERMINATING_HOOK
from bootstrap.errors import CommandError
from bootstrap.imds import InstanceIdentity
from bootstrap.plan import Context

logger = logging.getLogger(__name__)


def complete_hook(context: Context, identity: InstanceIdentity) -> None:
    """Let the Auto Scaling group end this machine, which it may do at once."""
    group = identity.auto_scaling_group
    if group is None:
        logger.warning("no Auto Scaling group in the instance's tags: the life-cycle hook runs into its time-out")
        return
    try:
        context.aws.client("autoscaling").complete_lifecycle_action(
            AutoScalingGroupName=group,
            LifecycleHookName=TERMINATING_HOOK,
            InstanceId=identity.instance_id,
            LifecycleActionResult="CONTINUE",
        )
    except AWS_ERRORS as error:
        logger.warning("the life-cycle action of %s is not completed: %s", group, error)


def shut_down(context: Context) -> None:
    """Give the machine back; when it refuses, say so loudly."""
    try:
        context.system.shut_down()
    except CommandError as error:
        logger.critical("the machine does not shut down, and costs money: %s %s", error, error.output_tail)
