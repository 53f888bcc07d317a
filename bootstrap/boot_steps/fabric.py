"""Boot step: check that the node has the EFA adapters and the plugin that the node document requires.

Without EFA or its plugin, NCCL silently falls back to TCP at a tenth of the speed. A node that requires EFA therefore
terminates. `node.fabric: tcp` in the deployment file allows TCP.
Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bootstrap.boot_steps.step_runner import Step
from bootstrap.context import Context
from bootstrap.errors import CommandError, NotReadyError, StepError
from bootstrap.events.schema import InstanceFault
from bootstrap.gpus.collectives import (
    EFA_INFO,
    PLUGIN,
    PLUGIN_DIRECTORIES,
    WITH_EFA,
    efa_domains,
    plugin_directory,
)
from bootstrap.gpus.health import Fault
from hardware import instance_type

ADAPTERS = Path("/sys/class/infiniband")
PROGRAM_SECONDS = 30.0
# During boot, udev loads the driver and creates the devices of the adapters one at a time.
ADAPTER_SECONDS = 60.0


class Fabric(Step):
    """Check EFA adapters and the NCCL plugin for EFA, if the node uses EFA."""

    name = "fabric"
    after = ("identity",)

    def verify(self, context: Context) -> None:
        """Wait until libfabric reports the adapters, look for the plugin, and emit each fault.

        Raises:
            StepError: NCCL would use TCP or too few adapters.
        """
        if context.node.fabric != "efa":
            return
        faults = list(fabric_faults(context))
        for fault in faults:
            context.events.emit(InstanceFault(fault.message, "terminate", fault.remedy))
        if faults:
            raise StepError(
                "; ".join(fault.message for fault in faults),
                remedy="; ".join(dict.fromkeys(fault.remedy for fault in faults)),
            )

    def intent(self, context: Context) -> list[str]:
        """Describe the fabric and the trainers' environment variables for it."""
        if context.node.fabric != "efa":
            return ["TCP, as the node document specifies"]
        variables = ", ".join(f"{each.name}={each.value}" for each in WITH_EFA)
        return [f"EFA: the trainers run with {variables}; NCCL fails without EFA"]


def fabric_faults(context: Context) -> Iterator[Fault]:
    """Yield the faults that prevent NCCL from using all of this instance type's EFA adapters."""
    try:
        context.wait_until_ready(lambda: _check_adapters(context), limit_seconds=ADAPTER_SECONDS)
    except StepError as error:
        yield Fault(f"fabric: {error.message}", "terminate", error.remedy)
    if not _loader_finds_plugin(context) and plugin_directory() is None:
        yield Fault(
            f"fabric: efa: {PLUGIN} (aws-ofi-nccl) not found by the loader or in {', '.join(PLUGIN_DIRECTORIES)}",
            "terminate",
            "use an image with the EFA installer's aws-ofi-nccl, or add its directory to /etc/ld.so.conf.d (ldconfig); "
            "or set node.fabric: tcp",
        )


def _check_adapters(context: Context) -> None:
    """Check that libfabric reports all adapters of this instance type.

    Raises:
        NotReadyError: It reports none or too few.
        StepError: It is not installed.
    """
    program = context.system.find_program("fi_info") or EFA_INFO
    try:
        text = context.system.run([program, "-p", "efa", "-t", "FI_EP_RDM"], timeout_seconds=PROGRAM_SECONDS)
    except CommandError as error:
        adapters = len(context.system.list_directory(ADAPTERS))
        kind = StepError if error.exit_code is None else NotReadyError
        raise kind.from_command(
            error,
            message=f"efa: libfabric finds no EFA adapter ({adapters} adapters in the kernel)",
            remedy="use an instance type with EFA, an image with the EFA installer, and the EFA security group; or "
            "node.fabric: tcp",
        ) from error
    found = efa_domains(text)
    name = "" if context.identity is None else context.identity.instance_type
    known = instance_type(name)
    expected = 1 if known is None else max(1, known.efa_interfaces)
    if len(found) < expected:
        raise NotReadyError(
            f"found {len(found)} EFA adapters ({', '.join(found) or 'none'}), expected {expected} on "
            f"{name or 'a node'}",
            remedy="the instance terminates; if all instances have too few, launch them with an interface on each card "
            "(as the stack's launch template does)",
        )


def _loader_finds_plugin(context: Context) -> bool:
    directories = context.system.environment().get("LD_LIBRARY_PATH", "").split(":")
    if any(each and PLUGIN in context.system.list_directory(Path(each)) for each in directories):
        return True
    program = context.system.find_program("ldconfig") or "/sbin/ldconfig"
    try:
        cache = context.system.run([program, "-p"], timeout_seconds=PROGRAM_SECONDS)
    except CommandError:  # no loader cache: use only the known directories
        return False
    return re.search(rf"^\s+{re.escape(PLUGIN)} ", cache, re.MULTILINE) is not None
