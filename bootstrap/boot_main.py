"""Boots a node: runs the boot steps and starts the supervisor, or reports a failure and shuts down the instance."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import NoReturn

from bootstrap.boot_steps.boot_sequence import STEPS
from bootstrap.boot_steps.step_runner import Step, StepRunError, run_steps
from bootstrap.context import (
    FLUSH_SECONDS,
    MakeContext,
    attach_shipper,
    failure_event,
    identify,
    make_context,
    read_node_document,
    report_failure,
)
from bootstrap.errors import BootstrapError, CommandError, MetadataError, StepError
from bootstrap.events.log import EventLog
from bootstrap.events.schema import BootFinished, BootStarted
from bootstrap.layout import Layout
from bootstrap.supervise.leaving import complete_hook_if_terminating
from bootstrap.system import System

logger = logging.getLogger(__name__)

DOCUMENT_REMEDY = "deploy again: the node document is part of the launch template"


def boot(system: System, layout: Layout, steps: Sequence[Step] = STEPS, make: MakeContext = make_context) -> bool:
    """Run the boot steps. Return True if the supervisor may start.

    On failure, emit an event, upload it to s3://<control bucket>/nodes/<user id>/boot-failure.json, and shut
    down the instance.
    """
    started = system.monotonic_seconds()
    try:
        node = read_node_document(system, layout)
    except BootstrapError as error:
        # Without a node document, the bucket is unknown, so the failure is reported only on the console and in the
        # events file.
        failure = failure_event("node_document", StepError(str(error), remedy=DOCUMENT_REMEDY))
        EventLog(system, layout.events).emit(failure)
        _shut_down(system)
        return False
    context = make(system, layout, node)
    try:
        # Read the identity before the first event, so that events and the failure report carry the instance id. The
        # `identity` step retries and reports any error.
        identify(context)
    except MetadataError as error:
        logger.warning("%s", error)
    shipper = attach_shipper(context)
    context.events.emit(BootStarted())
    try:
        run_steps(steps, context, timeout_seconds=node.supervise.boot_timeout_seconds)
    except StepRunError as error:
        failure = failure_event(error.step, error.error)
        context.events.emit(failure)
        report_failure(context, "boot-failure.json", failure)
        if shipper is not None:
            shipper.close(FLUSH_SECONDS)
        system.kill_children()
        complete_hook_if_terminating(context)
        _shut_down(system)
        return False
    context.events.emit(BootFinished(seconds=round(system.monotonic_seconds() - started, 3)))
    if shipper is not None:
        shipper.close(FLUSH_SECONDS)
    return True


def become_supervisor(system: System, layout: Layout) -> NoReturn:
    """Replace this process with the supervisor."""
    command = [sys.executable, "-m", "bootstrap", "supervise", "--root", str(layout.root)]
    system.replace_process(command)


def _shut_down(system: System) -> None:
    try:
        system.shut_down()
    except CommandError as error:
        logger.critical("cannot shut down the instance; it still incurs charges: %s %s", error, error.output_tail)
