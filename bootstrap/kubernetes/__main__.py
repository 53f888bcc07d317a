"""The command of the pods' container: `python -m bootstrap.kubernetes`."""

from __future__ import annotations

import logging
import os
import sys
from functools import partial

from bootstrap.boot_main import boot
from bootstrap.context import failure_event, read_node_document, report_failure
from bootstrap.errors import BootstrapError, StepError
from bootstrap.kubernetes import exit_codes
from bootstrap.kubernetes.pod import NODE_FILE, PodSystem, pod_context, read_pod
from bootstrap.kubernetes.supervision import supervise_pod
from bootstrap.layout import Layout
from bootstrap.supervise.trainers.launch import LaunchCommand, launcher_command
from bootstrap.system import System

logger = logging.getLogger(__name__)


def run(system: System, command: LaunchCommand = launcher_command) -> int:
    """Boot and supervise. Return the exit code of the pod."""
    environment = system.environment()
    layout = Layout.from_environment(environment)
    try:
        pod = read_pod(environment)
        text = system.read(pod.documents / NODE_FILE)
        if text is None:
            raise BootstrapError(
                f"{pod.documents / NODE_FILE}: not found; apply the ConfigMap from the manifests again"
            )
        system.write_atomic(layout.node_document, text)
        node = read_node_document(system, layout)
    except BootstrapError as error:
        logger.error("%s", error)
        return exit_codes.BAD_CONFIGURATION
    make = partial(pod_context, pod)
    if not boot(system, layout, make=make):
        return exit_codes.FAILED_NODE
    context = make(system, layout, node)
    try:
        return supervise_pod(context, command)
    except Exception as error:  # noqa: BLE001 top level of the process
        logger.exception("the supervisor failed")
        problem = StepError(f"{type(error).__name__}: {error}", remedy="see the traceback in the pod's log")
        report_failure(context, "supervisor-failure.json", failure_event("supervise", problem))
        return exit_codes.FAILED_NODE


def main() -> int:
    """Run the pod."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    code = run(PodSystem())
    logger.info("exit code %d", code)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads with requests that never finish must not delay the exit beyond the grace period.
    os._exit(code)


if __name__ == "__main__":
    main()
