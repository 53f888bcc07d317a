"""Whether the GPUs of a machine reach each other as its type promises: NVLink, the switches' manager, peer access.

Sources (2026-11): https://docs.nvidia.com/deploy/nvidia-smi/index.html,
https://docs.nvidia.com/health-validation/reference/checks/nvlink (no link of a GPU may be inactive),
https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html (without its manager no program starts).
"""

from __future__ import annotations

import logging
import re
import xml.etree.ElementTree as ET  # noqa: S405 the driver's own output
from collections.abc import Iterator

from bootstrap.errors import CommandError
from bootstrap.instance_fabric import fabric_of
from bootstrap.plan import Context
from bootstrap.steps.gpu_health import REPLACE, RESET, Fault

logger = logging.getLogger(__name__)

MANAGER = "nvidia-fabricmanager"
DRIVER_SECONDS = 120.0
# The manager trains the links of all GPUs after a start; NVIDIA's guide has it done within a minute or two.
REGISTRATION_SECONDS, LOOK_SECONDS = 150.0, 3.0
_GPU_LINE = re.compile(r"^GPU (\d+):")
_LINK_LINE = re.compile(r"^\s+Link (\d+): (.+)$")


def start_switches(context: Context) -> None:
    """Start the manager of the NVLink switches where it does not run, and let it register the GPUs; `verify` judges."""
    if not _has_switches(context):
        return
    if not _manager_runs(context):
        try:
            context.system.run(["systemctl", "start", MANAGER], timeout_seconds=DRIVER_SECONDS)
        except CommandError as error:
            logger.warning("%s cannot be started: %s %s", MANAGER, error, error.output_tail)
            return
        context.events.emit("fabric_manager_started")
    deadline = context.system.monotonic_seconds() + REGISTRATION_SECONDS
    while _is_registering(context) and context.system.monotonic_seconds() < deadline:
        context.system.sleep(LOOK_SECONDS)


def link_faults(context: Context, report: str) -> Iterator[Fault]:
    """Yield what is wrong between the GPUs; `report` is the driver's (XML)."""
    if not _has_switches(context):
        return
    if not _manager_runs(context):
        yield Fault(
            f"{MANAGER}: does not run, and no program can use GPUs behind NVLink switches without it",
            "give_back",
            f"use an image that has {MANAGER} of the driver's own version, enabled",
        )
        return
    yield from fabric_state_faults(report)
    for arguments, judge in ((["nvlink", "--status"], _nvlink_faults), (["topo", "-p2p", "r"], _peer_faults)):
        try:
            text = context.system.run(["nvidia-smi", *arguments], timeout_seconds=DRIVER_SECONDS)
        except CommandError as error:
            yield Fault(f"gpus: {' '.join(arguments)} is not known ({error.reason})", "continue", "see nvidia-smi")
            continue
        yield from judge(context, text)


def fabric_state_faults(report: str) -> Iterator[Fault]:
    """Yield the GPUs that the switches' manager has not registered; GPUs before Hopper have no such state."""
    for bus, state, status in _fabric_states(report):
        if state == "Completed" and status in ("Success", "N/A", ""):
            continue
        remedy = f"{RESET}; {MANAGER} must be of the driver's own version (journalctl --unit {MANAGER})"
        yield Fault(f"gpu {bus}: is not registered with the NVLink switches: {state} ({status})", "reset", remedy)


def inactive_links(text: str, gpus: int, links: int) -> dict[int, int]:
    """Return how many of its `links` each GPU lacks, from `nvidia-smi nvlink --status`; sound ones are left out."""
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
    """Return the pairs without peer access, such as `GPU0-GPU3 CNS`, from `nvidia-smi topo -p2p r`."""
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
    links = fabric_of(_type(context)).nvlinks
    for gpu, lacking in inactive_links(text, context.node.gpus, links).items():
        yield Fault(f"gpu {gpu}: {lacking} of {links} NVLinks are not active", "reset", RESET)


def _peer_faults(context: Context, text: str) -> Iterator[Fault]:
    pairs = unreachable_peers(text)
    if pairs:
        shown = ", ".join(pairs[:4]) + (f" and {len(pairs) - 4} more" if len(pairs) > 4 else "")
        yield Fault(f"gpus: no peer access between {shown}", "give_back", REPLACE)


def _type(context: Context) -> str:
    return "" if context.identity is None else context.identity.instance_type


def _has_switches(context: Context) -> bool:
    return context.node.gpus > 1 and fabric_of(_type(context)).has_nvswitch


def _manager_runs(context: Context) -> bool:
    try:
        context.system.run(["systemctl", "is-active", "--quiet", MANAGER], timeout_seconds=DRIVER_SECONDS)
    except CommandError:  # 3: it does not run
        return False
    return True


def _is_registering(context: Context) -> bool:
    try:
        report = context.system.run(["nvidia-smi", "-q", "-x"], timeout_seconds=DRIVER_SECONDS)
    except CommandError:  # `verify` says so
        return False
    return any(state in ("In Progress", "Not Started") for _, state, _ in _fabric_states(report))


def _fabric_states(report: str) -> list[tuple[str, str, str]]:
    """Return bus address, state and status of each GPU that has them."""
    try:
        gpus = ET.fromstring(report).findall("gpu")  # noqa: S314
    except ET.ParseError:  # said by `gpu_health`
        return []
    found = []
    for gpu in gpus:
        state, status = ((gpu.findtext(f"fabric/{name}") or "").strip() for name in ("state", "status"))
        if state not in ("", "N/A"):
            found.append((gpu.get("id", "unknown"), state, status))
    return found
