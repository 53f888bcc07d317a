"""Boot step: the network between nodes is the one that the node document promises, adapter for adapter.

Without EFA, or without its plugin, NCCL goes on over TCP at a tenth of the speed and says nothing. A node that was
promised EFA is given back instead; `node.fabric: tcp` in the deployment file is how one allows TCP.
Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bootstrap.collectives import PLUGIN, PLUGIN_DIRECTORIES, WITH_EFA, plugin_directory
from bootstrap.errors import CommandError, StepError
from bootstrap.instance_fabric import fabric_of
from bootstrap.plan import Context, Step
from bootstrap.steps.gpu_health import Fault

EFA_INFO = "/opt/amazon/efa/bin/fi_info"
ADAPTERS = Path("/sys/class/infiniband")
PROGRAM_SECONDS = 30.0
_DOMAIN = re.compile(r"^\s+domain: (\S+)-rdm$", re.MULTILINE)


class Fabric(Step):
    """Make sure of every EFA adapter and of NCCL's plugin for them, where nodes are to use EFA."""

    name = "fabric"
    after = ("identity",)

    def act(self, context: Context) -> None:
        """Nothing to make: the launch template brings the adapters, the image the programs."""

    def verify(self, context: Context) -> None:
        """Count the adapters that libfabric offers, and look for the plugin; say each fault.

        Raises:
            StepError: The gang would go over TCP, or be as slow as this node.
        """
        if context.node.fabric != "efa":
            return
        faults = list(fabric_faults(context))
        for fault in faults:
            context.events.emit("instance_fault", message=fault.message, action=fault.action, remedy=fault.remedy)
        fatal = [fault for fault in faults if fault.action != "continue"]
        if fatal:
            raise StepError(
                "; ".join(fault.message for fault in fatal),
                remedy="; ".join(dict.fromkeys(fault.remedy for fault in fatal)),
            )

    def intent(self, context: Context) -> list[str]:
        """Say what is promised, and which variables the trainers get for it."""
        if context.node.fabric != "efa":
            return ["TCP, as the node document says"]
        variables = ", ".join(f"{each.name}={each.value}" for each in WITH_EFA)
        return [f"EFA: trainers get {variables}; NCCL fails where it cannot use it"]


def fabric_faults(context: Context) -> Iterator[Fault]:
    """Yield what stands between NCCL and all of this machine's EFA adapters."""
    program = context.system.find_program("fi_info") or EFA_INFO
    try:
        text = context.system.run([program, "-p", "efa", "-t", "FI_EP_RDM"], timeout_seconds=PROGRAM_SECONDS)
    except CommandError as error:
        adapters = len(context.system.list_directory(ADAPTERS))
        yield Fault(
            f"fabric: efa, and libfabric offers no EFA ({adapters} adapters in the kernel; {error.reason})",
            "give_back",
            "use a type with EFA, an image with its installer, and the EFA security group; or node.fabric: tcp",
        )
        return
    found = efa_domains(text)
    kind = "" if context.identity is None else context.identity.instance_type
    expected = fabric_of(kind).efa_adapters
    if len(found) < expected:
        yield Fault(
            f"fabric: libfabric offers {len(found)} EFA adapters ({', '.join(found) or 'none'}), {kind or 'a node'} "
            f"has {expected}",
            "give_back",
            "the machine is given back; when each one lacks them, launch with an interface on every network card "
            "(the stack's launch template does)",
        )
    if not _loader_finds_plugin(context) and plugin_directory() is None:
        yield Fault(
            f"fabric: efa, and {PLUGIN} (aws-ofi-nccl) is neither known to the loader nor in "
            f"{', '.join(PLUGIN_DIRECTORIES)}",
            "give_back",
            "use an image with the EFA installer's aws-ofi-nccl, or name its folder in /etc/ld.so.conf.d (ldconfig); "
            "or node.fabric: tcp",
        )


def efa_domains(text: str) -> list[str]:
    """Return the adapters in what `fi_info -p efa -t FI_EP_RDM` prints; newer libfabric lists each one twice."""
    return sorted(set(_DOMAIN.findall(text)))


def _loader_finds_plugin(context: Context) -> bool:
    folders = context.system.environment().get("LD_LIBRARY_PATH", "").split(":")
    if any(folder and PLUGIN in context.system.list_directory(Path(folder)) for folder in folders):
        return True
    program = context.system.find_program("ldconfig") or "/sbin/ldconfig"
    try:
        cache = context.system.run([program, "-p"], timeout_seconds=PROGRAM_SECONDS)
    except CommandError:  # no cache that one could ask: then the usual folders decide
        return False
    return re.search(rf"^\s+{re.escape(PLUGIN)} ", cache, re.MULTILINE) is not None
