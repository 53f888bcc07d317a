"""Boots a node: runs the plan; on a failure reports it, and gives the machine back; else becomes the supervisor."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from typing import NoReturn

from bootstrap.aws import AWS_ERRORS, Aws
from bootstrap.documents import NodeDocument
from bootstrap.errors import BootstrapError, CommandError, MetadataError, StepError
from bootstrap.events import EventLog
from bootstrap.imds import InstanceMetadata
from bootstrap.layout import Layout
from bootstrap.log_shipper import LogShipper
from bootstrap.plan import Context, PlanError, Step, run_plan
from bootstrap.steps.code import Code
from bootstrap.steps.fabric import Fabric
from bootstrap.steps.identity import Identity
from bootstrap.steps.instance_checks import InstanceChecks
from bootstrap.steps.local_disks import LocalDisks
from bootstrap.steps.machine_settings import MachineSettings
from bootstrap.steps.python_env import PythonEnv
from bootstrap.steps.run_document import FetchRunDocument
from bootstrap.steps.shared_storage import SharedStorage
from bootstrap.steps.staging import Staging
from bootstrap.steps.trainer_ready import TrainerReady
from bootstrap.steps.volumes import Volumes
from bootstrap.steps.wheelhouse import Wheelhouse
from bootstrap.system import System

logger = logging.getLogger(__name__)

STEPS: tuple[Step, ...] = (
    Identity(),
    InstanceChecks(),
    MachineSettings(),
    Fabric(),
    Wheelhouse(),
    PythonEnv(),
    FetchRunDocument(),
    Code(),
    LocalDisks(),
    Volumes(),
    SharedStorage(),
    Staging(),
    TrainerReady(),
)
FLUSH_SECONDS = 10.0
DOCUMENT_REMEDY = "deploy again: the node document comes with the launch template"


def read_node_document(system: System, layout: Layout) -> NodeDocument:
    """Read and decode the node document.

    Raises:
        DocumentError: It is not sound.
        BootstrapError: There is none.
    """
    text = system.read(layout.node_document)
    if text is None:
        raise BootstrapError(f"{layout.node_document}: is missing; the shim writes it; give --root or TRAINSTACK_ROOT")
    return NodeDocument.from_text(text, document=str(layout.node_document))


def make_context(system: System, layout: Layout, node: NodeDocument) -> Context:
    """Return what boot and supervisor work with."""
    return Context(
        system=system,
        layout=layout,
        node=node,
        aws=Aws(node.region),
        metadata=InstanceMetadata(system),
        events=EventLog(system, layout.events),
    )


def boot(system: System, layout: Layout, steps: Sequence[Step] = STEPS) -> bool:
    """Run the plan; returns True when the node may supervise.

    A failure is written as an event, uploaded to s3://<checkpoint bucket>/nodes/<instance id>/boot-failure.json, and
    the machine is shut down.
    """
    started = system.monotonic_seconds()
    try:
        node = read_node_document(system, layout)
    except BootstrapError as error:
        # Without a document there is no bucket to report to: the console and the events file are what is left.
        failure = failure_record("node_document", StepError(str(error), remedy=DOCUMENT_REMEDY))
        EventLog(system, layout.events).emit("boot_failed", **failure)
        _give_back(system)
        return False
    context = make_context(system, layout, node)
    try:
        # Asked before the first event, so that events and the report carry the machine's name. When it fails, the
        # step of that name asks again, and fails with its own words.
        context.identity = context.metadata.identity()
        context.events.set_instance(context.identity.instance_id)
    except MetadataError as error:
        logger.warning("%s", error)
    shipper = attach_shipper(context)
    context.events.emit("boot_started")
    try:
        run_plan(steps, context, timeout_seconds=node.supervise.boot_timeout_seconds)
    except PlanError as error:
        failure = failure_record(error.step, error.error)
        context.events.emit("boot_failed", **failure)
        report_failure(context, "boot-failure.json", failure)
        if shipper is not None:
            shipper.close(FLUSH_SECONDS)
        system.kill_children()
        _give_back(system)
        return False
    context.events.emit("boot_finished", seconds=round(system.monotonic_seconds() - started, 3))
    if shipper is not None:
        shipper.close(FLUSH_SECONDS)
    return True


def attach_shipper(context: Context) -> LogShipper | None:
    """Ship the events to CloudWatch Logs from now on; None when the machine has no name to ship under."""
    if context.identity is None:
        return None
    shipper = LogShipper(
        context.aws.client("logs"), log_group=context.node.log_group, stream=context.identity.instance_id
    )
    context.events.add_listener(shipper)
    return shipper


def report_failure(context: Context, name: str, failure: dict[str, object]) -> None:
    """Upload a failure where people and the run controller look for it; a failing upload is only logged."""
    if context.identity is None:
        return
    key = f"nodes/{context.identity.instance_id}/{name}"
    body = {"instance_id": context.identity.instance_id, "unix_seconds": context.system.unix_seconds(), **failure}
    try:
        # The machine costs money until it is given back: an endpoint that hangs may not hold it for long.
        context.aws.client("s3", impatient=True).put_object(
            Bucket=context.node.checkpoint_bucket, Key=key, Body=json.dumps(body, indent=2).encode()
        )
    except AWS_ERRORS as error:
        logger.error("s3://%s/%s: the failure cannot be uploaded: %s", context.node.checkpoint_bucket, key, error)


def become_supervisor(system: System, layout: Layout) -> NoReturn:
    """Replace this process by the supervisor, in the same place of the process tree."""
    command = [sys.executable, "-m", "bootstrap", "supervise", "--root", str(layout.root)]
    system.replace_process(command)


def failure_record(step: str, error: StepError) -> dict[str, object]:
    """Return the keys of a boot_failed event."""
    return {
        "step": step,
        "message": error.message,
        "command": list(error.command) if error.command is not None else None,
        "exit_code": error.exit_code,
        "output_tail": error.output_tail,
        "remedy": error.remedy,
    }


def _give_back(system: System) -> None:
    try:
        system.shut_down()
    except CommandError as error:
        logger.critical("the machine does not shut down, and costs money: %s %s", error, error.output_tail)
