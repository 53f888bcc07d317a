"""Boot step: apply driver and kernel settings for training. A failure is reported and does not stop the boot.

Sources (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/optimize_gpu.html (persistence mode, and each
family's maximum clocks, which the driver also reports), and for the kernel
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html (libfabric copies data between a node's
processes).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET  # noqa: S405 the driver's own output
from collections.abc import Iterator
from pathlib import Path

from bootstrap.boot_steps.step_runner import Step
from bootstrap.context import Context
from bootstrap.errors import CommandError
from bootstrap.events.schema import InstanceFault

DRIVER_SECONDS = 120.0
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
# Ubuntu's images upgrade packages automatically. An upgrade of the driver's libraries under a running driver makes
# every later process fail with "Driver/library version mismatch". The mask lasts until the machine restarts, and then
# this step runs again.
# Sources (2026-11): https://github.com/yahoo/TensorFlowOnSpark/issues/51 (an AWS image),
# https://github.com/canonical/cloud-init/issues/2908 (apt-daily.service starts after user data).
_UPGRADES = ("apt-daily.timer", "apt-daily.service", "apt-daily-upgrade.timer", "apt-daily-upgrade.service")


class MachineSettings(Step):
    """Keep the GPU driver loaded and unchanged, set maximum clocks, and allow EFA to copy data between processes."""

    name = "machine_settings"
    after = ("instance_checks",)

    def act(self, context: Context) -> None:
        """Apply each setting, and emit an event for each failure."""
        for command in _settings(context):
            try:
                context.system.run(command, timeout_seconds=DRIVER_SECONDS)
            except CommandError as error:
                remedy = "training works without this setting; see docs/node-images.md; output: "
                remedy += error.output_tail[-200:]
                context.events.emit(InstanceFault(f"cannot apply a setting: {error}", "continue", remedy))

    def intent(self, context: Context) -> list[str]:
        """Return the commands to run."""
        return [" ".join(command) for command in _settings(context)]


def _settings(context: Context) -> Iterator[list[str]]:
    if not context.metadata.is_of_this_machine:  # a node in an embedded cloud, on a developer's computer
        return
    if context.system.find_program("apt-get") is not None:
        yield ["systemctl", "mask", "--runtime", "--now", *_UPGRADES]
    if context.node.gpus > 0:
        yield ["nvidia-smi", "--persistence-mode=1"]
        clocks = _highest_clocks(context)
        if clocks is not None:
            yield ["nvidia-smi", f"--applications-clocks={clocks}"]
    if context.node.fabric == "efa" and (context.system.read(_PTRACE_SCOPE) or "0").strip() != "0":
        yield ["sysctl", "--write", "kernel.yama.ptrace_scope=0"]


def _highest_clocks(context: Context) -> str | None:
    """Return the maximum memory and graphics clocks in MHz, in nvidia-smi's format, or None if unknown."""
    try:
        report = ET.fromstring(context.system.run(["nvidia-smi", "-q", "-x"], timeout_seconds=DRIVER_SECONDS))  # noqa: S314
    except (CommandError, ET.ParseError):
        return None  # `instance_checks` has reported it
    texts = [report.findtext(f"gpu/max_clocks/{name}") or "" for name in ("mem_clock", "graphics_clock")]
    found = [re.fullmatch(r"(\d+) MHz", text.strip()) for text in texts]
    return ",".join(match[1] for match in found if match is not None) if all(found) else None
