"""Supervises a pod until it leaves, and derives its exit code from the cause."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

from bootstrap.context import Context, identify
from bootstrap.kubernetes import exit_codes
from bootstrap.supervise.saved_state import MAX_FAILURES
from bootstrap.supervise.supervisor import Supervisor, signals
from bootstrap.supervise.trainers.launch import LaunchCommand, launcher_command

logger = logging.getLogger(__name__)


class Superseded:
    """Counts consecutive generations that ended because the checkpoint store contains a later generation.

    One such generation is normal after a pod was disconnected, because its peers have continued to train. Several in a
    row show that a job with different control records is training the same run. The jobs would discard each other's
    work indefinitely.
    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._count = 0

    @property
    def is_certain(self) -> bool:
        """Whether another job is training the run."""
        return self._count >= MAX_FAILURES

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Receive an event from the node."""
        if event["event"] != "generation_ended":
            return
        self._count = self._count + 1 if str(event["message"]).startswith("superseded: ") else 0
        if self.is_certain:
            self._leave()


def print_output(event: Mapping[str, Any]) -> None:
    """Print the trainers' output, which `kubectl logs` shows. The other events are in the log."""
    if event["event"] == "trainer_output":
        sys.stdout.write(event["text"])
        sys.stdout.flush()


def supervise_pod(context: Context, command: LaunchCommand = launcher_command) -> int:
    """Supervise until the pod leaves. Return its exit code.

    Raises:
        BootstrapError: See `identify`.
    """
    identify(context)
    assert context.identity is not None
    context.events.add_listener(print_output)
    with signals() as signalled:
        superseded = Superseded(lambda: signalled.append(context.system.unix_seconds()))
        context.events.add_listener(superseded)
        supervisor = Supervisor(context, context.identity, command, signalled)
        left = supervisor.run()
    recorded = supervisor.recorded
    if recorded is not None:
        codes = {"finished": exit_codes.FINISHED, "bad_configuration": exit_codes.BAD_CONFIGURATION}
        logger.info("the run has ended: %s %s", recorded.outcome, recorded.message)
        return codes.get(recorded.outcome, exit_codes.RUN_FAILED)
    if superseded.is_certain:
        logger.error(
            "another job is training this run: the checkpoint store has a later generation than the control records; "
            "set another training.run, or delete the other job"
        )
        return exit_codes.SUPERSEDED
    if signalled:
        return exit_codes.LEFT
    logger.error("the pod failed: %s", left.reason)
    return exit_codes.FAILED_NODE
