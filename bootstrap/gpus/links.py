"""Checks the connections between a machine's GPUs: NVLink, the fabric manager and peer access.

Sources (2026-11): https://docs.nvidia.com/deploy/nvidia-smi/index.html,
https://docs.nvidia.com/health-validation/reference/checks/nvlink (no inactive links),
https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html (CUDA needs it).
"""

from __future__ import annotations

import logging
import re
import xml.etree.ElementTree as ET  # noqa: S405 the driver's own output
from collections.abc import Iterator

from bootstrap.context import Context
from bootstrap.errors import CommandError, NotReadyError
from bootstrap.events.schema import FabricManagerStarted
from bootstrap.gpus.health import REPLACE, RESET, Fault
from hardware import instance_type

logger = logging.getLogger(__name__)

MANAGER = "nvidia-fabricmanager"
DRIVER_SECONDS = 120.0
# After starting, the manager trains all GPU links, which takes one to two minutes according to NVIDIA's guide.
REGISTRATION_SECONDS, POLL_SECONDS = 150.0, 3.0
# The manager cannot start before the driver and, since Blackwell, the switches' InfiniBand devices are ready.
START_SECONDS = 60.0
_GPU_LINE = re.compile(r"^GPU (\d+):")
_LINK_LINE = re.compile(r"^\s+Link (\d+): (.+)$")


def start_fabric_manager(context: Context) -> None:
    """Start the fabric manager for the NVLink switches unless it is running, and wait while it registers the GPUs.

    Failures are only logged, because `link_faults` reports them.
    """
    if not _has_switches(context) or context.pod is not None:  # a pod does not manage the services of its machine
        return
    if not _manager_runs(context):
        try:
            context.wait_until_ready(lambda: _start_manager(context), limit_seconds=START_SECONDS)
        except NotReadyError as error:
            logger.warning("%s %s", error.message, error.output_tail)
            return
        context.events.emit(FabricManagerStarted())
    deadline = context.system.monotonic_seconds() + REGISTRATION_SECONDS
    while _is_registering(context) and context.system.monotonic_seconds() < deadline:
        context.system.sleep(POLL_SECONDS)


def _start_manager(context: Context) -> None:
    """Start the fabric manager, or wait until systemd has started it.

    Raises:
        NotReadyError: The fabric manager does not start.
    """
    message, remedy = f"cannot start {MANAGER}", f"see journalctl --unit {MANAGER}"
    try:
        context.system.run(["systemctl", "start", MANAGER], timeout_seconds=DRIVER_SECONDS)
    except CommandError as error:
        raise NotReadyError.from_command(error, message=message, remedy=remedy) from error


def link_faults(context: Context, report: str) -> Iterator[Fault]:
    """Yield the connection faults. `report` is the driver's report (XML)."""
    if not _has_switches(context):
        return
    if context.pod is None and not _manager_runs(context):
        yield Fault(
            f"{MANAGER} is not running; without it, programs cannot use GPUs behind NVLink switches",
            "terminate",
            f"use an image with {MANAGER} enabled, in the same version as the driver",
        )
        return
    yield from fabric_state_faults(report)
    for arguments, faults_of in ((["nvlink", "--status"], _nvlink_faults), (["topo", "-p2p", "r"], _peer_faults)):
        try:
            text = context.system.run(["nvidia-smi", *arguments], timeout_seconds=DRIVER_SECONDS)
        except CommandError as error:
            yield Fault(f"nvidia-smi {' '.join(arguments)}: {error.reason}", "continue", "see the output of nvidia-smi")
            continue
        yield from faults_of(context, text)


def fabric_state_faults(report: str) -> Iterator[Fault]:
    """Yield the GPUs that the fabric manager has not registered. GPUs before Hopper do not report this state."""
    for bus, state, status in _fabric_states(report):
        if state == "Completed" and status in ("Success", "N/A", ""):
            continue
        remedy = f"{RESET}; {MANAGER} must have the same version as the driver (journalctl --unit {MANAGER})"
        yield Fault(f"gpu {bus}: not registered with the NVLink switches: {state} ({status})", "reset", remedy)


def inactive_links(text: str, gpus: int, links: int) -> dict[int, int]:
    """Return the number of inactive links of each GPU that has any.

    Args:
        text: Output of `nvidia-smi nvlink --status`.
        gpus: Number of GPUs.
        links: NVLinks per GPU.
    """
    active = dict.fromkeys(range(gpus), 0)
    gpu = None
    for line in text.splitlines():
        heading, link = _GPU_LINE.match(line), _LINK_LINE.match(line)
        if heading is not None:
            gpu = int(heading[1])
        elif link is not None and gpu in active and link[2].strip().endswith("GB/s"):
            active[gpu] += 1
    return {index: links - count for index, count in active.items() if count < links}


def unreachable_peers(text: str) -> list[str]:
    """Return the pairs without peer access, such as `GPU0-GPU3 CNS`, from the output of `nvidia-smi topo -p2p r`."""
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("GPU")]
    if not rows:
        return []
    names, *states = rows
    found = {}
    for row in states:
        for other, state in zip(names, row[1:], strict=False):
            if state not in ("OK", "X"):
                found["-".join(sorted((row[0], other)))] = state
    return [f"{pair} {state}" for pair, state in sorted(found.items())]


def _nvlink_faults(context: Context, text: str) -> Iterator[Fault]:
    links = _nvlinks(context)
    for gpu, inactive in inactive_links(text, context.node.gpus, links).items():
        yield Fault(f"gpu {gpu}: {inactive} of {links} NVLinks are inactive", "reset", RESET)


def _peer_faults(context: Context, text: str) -> Iterator[Fault]:
    pairs = unreachable_peers(text)
    if pairs:
        shown = ", ".join(pairs[:4]) + (f" and {len(pairs) - 4} more" if len(pairs) > 4 else "")
        yield Fault(f"no peer access between {shown}", "terminate", REPLACE)


def _nvlinks(context: Context) -> int:
    """Return the number of NVLinks from each GPU to the switches, or 0 if it has none or its type is unknown."""
    known = None if context.identity is None else instance_type(context.identity.instance_type)
    return 0 if known is None else known.nvlinks


def _has_switches(context: Context) -> bool:
    return context.node.gpus > 1 and _nvlinks(context) > 0


def _manager_runs(context: Context) -> bool:
    try:
        context.system.run(["systemctl", "is-active", "--quiet", MANAGER], timeout_seconds=DRIVER_SECONDS)
    except CommandError:  # exit code 3: inactive
        return False
    return True


def _is_registering(context: Context) -> bool:
    try:
        report = context.system.run(["nvidia-smi", "-q", "-x"], timeout_seconds=DRIVER_SECONDS)
    except CommandError:  # `verify` reports it
        return False
    return any(state in ("In Progress", "Not Started") for _, state, _ in _fabric_states(report))


def _fabric_states(report: str) -> list[tuple[str, str, str]]:
    """Return the bus address, state and status of each GPU that reports them."""
    try:
        gpus = ET.fromstring(report).findall("gpu")  # noqa: S314
    except ET.ParseError:  # `gpu_faults` reports it
        return []
    found = []
    for gpu in gpus:
        state, status = ((gpu.findtext(f"fabric/{name}") or "").strip() for name in ("state", "status"))
        if state not in ("", "N/A"):
            found.append((gpu.get("id", "unknown"), state, status))
    return found
