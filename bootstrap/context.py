"""The context that the boot steps, the supervisor and the pre-warm share: documents, clients, metadata and events."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bootstrap.aws import AWS_ERRORS, Aws
from bootstrap.documents import NodeDocument, RunDocument
from bootstrap.documents.object_keys import report_prefix, user_id
from bootstrap.errors import BootstrapError, MetadataError, NoMetadataService, NotReadyError, StepError
from bootstrap.events.log import EventLog
from bootstrap.events.schema import BootFailed, BootWaiting
from bootstrap.events.shipper import LogShipper
from bootstrap.imds import InstanceIdentity, InstanceMetadata
from bootstrap.layout import Layout
from bootstrap.system import System

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 10.0
"""Timeout for delivering queued events before a process ends."""
POLL_SECONDS = 2.0
# The metadata service of a new instance may return 404 for a value for some seconds.
# Source (2026-11): https://github.com/awslabs/amazon-eks-ami/pull/1970.
METADATA_SECONDS = 20.0

T = TypeVar("T")


@dataclass(frozen=True)
class PodSettings:
    """Settings of a node that is a Kubernetes pod. Such a node shares its machine, and exits when the run ends.

    Attributes:
        run_document: File with the run document, from a mounted ConfigMap. The kubelet updates it after an edit.
        signal_seconds: Time between SIGTERM and SIGKILL, minus the time for the last reports.
    """

    run_document: Path
    signal_seconds: float


@dataclass
class Context:
    """The node program's dependencies.

    Attributes:
        system: The machine.
        layout: Paths on the node.
        node: The node document.
        aws: AWS clients.
        metadata: Client for the instance metadata service.
        events: The event log.
        identity: This instance's identity, set by the `identity` step or earlier.
        run: The run document, set by the `run_document` step.
        uninitialized_mounts: Mounts of volumes that EBS did not initialize as configured. The `volumes` step adds them,
            and their datasets are pre-warmed.
        pod: Settings of a Kubernetes pod. None: the node is an instance.
    """

    system: System
    layout: Layout
    node: NodeDocument
    aws: Aws
    metadata: InstanceMetadata
    events: EventLog
    identity: InstanceIdentity | None = None
    run: RunDocument | None = None
    uninitialized_mounts: set[str] = field(default_factory=set)
    pod: PodSettings | None = None

    def wait_until_ready(self, attempt: Callable[[], T], *, limit_seconds: float) -> T:
        """Call `attempt` until it does not raise NotReadyError, and return its result.

        Emits BootWaiting if the first call fails.

        Raises:
            NotReadyError: The last call failed, after `limit_seconds`.
            StepError: See `attempt`.
        """
        deadline = self.system.monotonic_seconds() + limit_seconds
        is_first = True
        while True:
            try:
                return attempt()
            except NotReadyError as error:
                if self.system.monotonic_seconds() >= deadline:
                    raise error.after(limit_seconds) from error.__cause__
                if is_first:
                    logger.info("waiting: %s", error.message)
                    self.events.emit(BootWaiting(message=error.message, limit_seconds=limit_seconds))
                is_first = False
            self.system.sleep(POLL_SECONDS)


def read_node_document(system: System, layout: Layout) -> NodeDocument:
    """Read and decode the node document.

    Raises:
        DocumentError: The document is invalid.
        BootstrapError: The file does not exist.
    """
    text = system.read(layout.node_document)
    if text is None:
        raise BootstrapError(f"{layout.node_document}: not found; the shim writes it; set --root or TRAINSTACK_ROOT")
    return NodeDocument.from_text(text, document=str(layout.node_document))


MakeContext = Callable[[System, Layout, NodeDocument], Context]


def make_context(system: System, layout: Layout, node: NodeDocument) -> Context:
    """Return a context for the node document, without an identity or a run."""
    return Context(
        system=system,
        layout=layout,
        node=node,
        aws=Aws(node.region),
        metadata=InstanceMetadata(system),
        events=EventLog(system, layout.events),
    )


def identify(context: Context) -> None:
    """Read the instance identity into the context, so that later events carry the instance id.

    Raises:
        NoMetadataService: The instance metadata service did not respond.
        MetadataError: A value is missing or was refused.
    """
    try:
        context.identity = context.wait_until_ready(lambda: _identity(context), limit_seconds=METADATA_SECONDS)
    except NotReadyError as error:
        raise MetadataError(error.message) from error
    context.events.set_instance(context.identity.instance_id)


def _identity(context: Context) -> InstanceIdentity:
    try:
        return context.metadata.identity()
    except NoMetadataService:
        raise
    except MetadataError as error:
        raise NotReadyError(str(error), remedy="see the message") from error


def attach_shipper(context: Context) -> LogShipper | None:
    """Ship later events to CloudWatch Logs. Return None if the instance id, which names the log stream, is unknown.

    Also return None in a Kubernetes pod, whose log the cluster keeps.
    """
    if context.identity is None or context.pod is not None:
        return None
    shipper = LogShipper(
        context.aws.client("logs"), log_group=context.node.log_group, stream=context.identity.instance_id
    )
    context.events.add_listener(shipper)
    return shipper


def failure_event(step: str, error: StepError) -> BootFailed:
    """Return the event for a failed step."""
    return BootFailed(
        step=step,
        message=error.message,
        command=error.command,
        exit_code=error.exit_code,
        output_tail=error.output_tail,
        remedy=error.remedy,
    )


def report_failure(context: Context, name: str, failure: BootFailed) -> None:
    """Upload a failure to nodes/<user id>/<name> in the control bucket. A failed upload is logged."""
    if context.identity is None:
        return
    instance_id = context.identity.instance_id
    bucket, key = context.node.control_bucket, report_prefix(user_id(context.node.role_id, instance_id)) + name
    body = {"instance_id": instance_id, "unix_seconds": context.system.unix_seconds(), **failure.to_json()}
    try:
        # The instance costs money until it shuts down, so an unresponsive endpoint must not delay the shutdown for
        # long.
        context.aws.client("s3", patience="low").put_object(
            Bucket=bucket, Key=key, Body=json.dumps(body, indent=2).encode()
        )
    except AWS_ERRORS as error:
        logger.error("s3://%s/%s: cannot upload the failure: %s", bucket, key, error)
