"""Boot step: settings of driver and kernel that training is faster with; one that cannot be made is said, no more.

Sources (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/optimize_gpu.html (persistence, clocks: AWS lists
for each family what the driver itself names as the most), and for the kernel
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html (libfabric copies between processes of a node).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET  # noqa: S405 the driver's own output
from collections.abc import Iterator
from pathlib import Path

from bootstrap.errors import CommandError
from bootstrap.plan import Context, Step

DRIVER_SECONDS = 120.0
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


class MachineSettings(Step):
    """Keep the GPU driver loaded, GPU clocks at their highest, and let EFA copy between processes."""

    name = "machine_settings"
    after = ("instance_checks",)

    def act(self, context: Context) -> None:
        """Make each setting; an event says which could not be made."""
        for command in _settings(context):
            try:
                context.system.run(command, timeout_seconds=DRIVER_SECONDS)
            except CommandError as error:
                context.events.emit(
                    "instance_fault",
                    message=f"a setting cannot be made: {error}",
                    action="continue",
                    remedy="training works without it, slower; see what the program says: " + error.output_tail[-200:],
                )

    def verify(self, context: Context) -> None:
        """Nothing: training works without them."""

    def intent(self, context: Context) -> list[str]:
        """Say which programs would be run."""
        return [" ".join(command) for command in _settings(context)]


def _settings(context: Context) -> Iterator[list[str]]:
    if not context.metadata.is_of_this_machine:  # an emulated cloud's node: the computer is somebody's
        return
    if context.node.gpus > 0:
        yield ["nvidia-smi", "--persistence-mode=1"]
        clocks = _highest_clocks(context)
        if clocks is not None:
            yield ["nvidia-smi", f"--applications-clocks={clocks}"]
    if context.node.fabric == "efa" and (context.system.read(_PTRACE_SCOPE) or "0").strip() != "0":
        yield ["sysctl", "--write", "kernel.yama.ptrace_scope=0"]


def _highest_clocks(context: Context) -> str | None:
    """Return memory and graphics clock in MHz as the driver wants them, or None where it does not name them."""
    try:
        report = ET.fromstring(context.system.run(["nvidia-smi", "-q", "-x"], timeout_seconds=DRIVER_SECONDS))  # noqa: S314
    except (CommandError, ET.ParseError):
        return None  # `instance_checks` has said so
    texts = [report.findtext(f"gpu/max_clocks/{name}") or "" for name in ("mem_clock", "graphics_clock")]
    found = [re.fullmatch(r"(\d+) MHz", text.strip()) for text in texts]
    return ",".join(match[1] for match in found if match is not None) if all(found) else None
