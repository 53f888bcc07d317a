"""Boot step: stripe the NVMe instance store disks and mount them at the directory for staged datasets.

The disks hold only temporary data, which survives a reboot but not an instance stop. If a disk is missing, the array is
rebuilt. The node program recognizes its arrays and file systems by name. If the image has mounted the disks, as AWS's
deep learning images do, the step uses that mount point. docs/node-images.md describes the services that mount disks.
Sources (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ssd-instance-store.html,
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-store-lifetime.html, mdadm(8).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bootstrap.boot_steps.step_runner import Step
from bootstrap.context import Context
from bootstrap.disks.listing import DEVICES, PROBE_SECONDS, Disk, contents, list_disks
from bootstrap.disks.mounting import mount, mounted_source
from bootstrap.disks.tools import require_program
from bootstrap.errors import CommandError, NotReadyError, StepError

logger = logging.getLogger(__name__)

MODEL = "Amazon EC2 NVMe Instance Storage"
NAME = "trainstack"
"""Name of the node program's array, and the label of its file system."""
ARRAY = DEVICES / "md" / NAME
TOOL_SECONDS = 300.0
# Services of images that combine the instance store disks and mount them. They start during boot, at the same time as
# user data, and their scripts unmount the disks first. Sources (2026-11):
# https://github.com/awslabs/awsome-distributed-ai/blob/main/1.architectures/5.sagemaker-hyperpod/LifecycleScripts/base-config/utils/install_enroot_pyxis.sh
# (waits for dlami-nvme.service), https://github.com/aws/aws-parallelcluster-cookbook/pull/1013 (setup-ephemeral.service
# and the script, from which the one in AWS's deep learning images is derived).
IMAGE_SERVICES = ("dlami-nvme.service", "setup-ephemeral.service")
# Longer than TimeoutStartSec of these units (300 s).
IMAGE_SERVICE_SECONDS = 330.0
SETTLING_SECONDS = 60.0
_REMEDY = (
    "check the image's service that prepares the disks (journalctl --unit dlami-nvme); if there is none and nothing on "
    "the disk is needed, erase it (wipefs --all DISK; blkdiscard DISK), and boot again"
)


@dataclass(frozen=True)
class DiskPlan:
    """The work to do on the disks.

    Attributes:
        action: `none`: there are no instance store disks; `mounted`: nothing to do; `bind`: bind-mount a directory in
            `source`, where the image mounted the disks; `mount`: mount the file system on `source`; `assemble`:
            assemble the array of `disks`, then mount; `create`: create array and file system on blank disks; `rebuild`:
            the same, on disks with remains of one of the node program's arrays.
        disks: The instance store disks, sorted by serial number.
        source: See `action`.
        remains: Subset of `disks` that contains remains of such an array.
        stale: Running arrays that must be stopped first.
    """

    action: Literal["none", "mounted", "bind", "mount", "assemble", "create", "rebuild"]
    disks: tuple[Disk, ...] = ()
    source: Path | None = None
    remains: tuple[Disk, ...] = ()
    stale: tuple[str, ...] = ()


class LocalDisks(Step):
    """Stripe the instance store disks (RAID 0), format them if they are blank, and mount them for datasets."""

    name = "local_disks"

    def act(self, context: Context) -> None:
        """Wait for the image's services to finish, then inspect and prepare the disks."""
        if not _instance_store_disks(context):
            return
        for service in IMAGE_SERVICES:
            _finish(context, service)
        plan = _settled_plan(context)
        logger.info("%s", describe(context, plan))
        try:
            apply(context, plan)
        except StepError:
            # Another service in the image may have mounted the disks at the same time. If so, use its mount.
            again = _settled_plan(context)
            if again.action != "bind":
                raise
            apply(context, again)

    def verify(self, context: Context) -> None:
        """Check that the disks, if any, are mounted."""
        action = plan_disks(context).action
        if action not in ("none", "mounted"):
            raise StepError(
                f"{context.layout.datasets}: the local disks are not mounted (pending: {action})",
                remedy="see the earlier events and the kernel log; boot again",
            )

    def intent(self, context: Context) -> list[str]:
        """Describe the work to do."""
        return [describe(context, plan_disks(context))]


def _finish(context: Context, service: str) -> None:
    """Start a service that the image enables, and wait until it ends. If systemd is already starting it, only wait.

    A failure is only logged, because the disks show how far the service got. (The script in AWS's images reports errors
    only in its output.)
    """
    try:
        context.system.run(["systemctl", "is-enabled", "--quiet", service], timeout_seconds=PROBE_SECONDS)
    except CommandError:  # not installed, disabled or masked
        return
    try:
        context.system.run(["systemctl", "start", service], timeout_seconds=IMAGE_SERVICE_SECONDS)
    except CommandError as error:
        logger.warning("%s: %s %s", service, error.reason, error.output_tail)


def _settled_plan(context: Context) -> DiskPlan:
    """Return the work to do. If a disk contains other data, wait: the image may be preparing it and will mount it."""
    return context.wait_until_ready(lambda: plan_disks(context), limit_seconds=SETTLING_SECONDS)


def plan_disks(context: Context) -> DiskPlan:
    """Inspect the disks, without changing anything, and return the work to do.

    Raises:
        NotReadyError: A disk contains other data or is in use.
        StepError: A disk cannot be inspected.
    """
    disks = _instance_store_disks(context)
    if not disks:
        return DiskPlan("none")
    target = str(context.layout.datasets)
    mounts = sorted({point for disk in disks for point in disk.mounts})
    if target in mounts or _is_target_mounted(context):
        return DiskPlan("mounted", disks)
    if mounts:
        return DiskPlan("bind", disks, source=Path(mounts[0]))
    ours = {holder for disk in disks for holder in disk.holders if _is_our_array(context, holder)}
    complete = len(ours) == 1 and all(disk.holders == tuple(ours) for disk in disks)
    if complete and _has_file_system(context, DEVICES / min(ours)):
        return DiskPlan("mount", disks, source=DEVICES / min(ours))
    return _plan_unmounted(context, disks, ours)


def _instance_store_disks(context: Context) -> tuple[Disk, ...]:
    """Return the instance store disks except the root disk, sorted by serial number."""
    if not context.metadata.is_of_this_machine:
        return ()
    return tuple(disk for disk in list_disks(context) if disk.model == MODEL and "/" not in disk.mounts)


def _plan_unmounted(context: Context, disks: tuple[Disk, ...], running: set[str]) -> DiskPlan:
    """Return the plan for disks without mounts. `running` lists the node program's incomplete arrays."""
    remains, arrays, problems = [], set(), []
    for disk in disks:
        if disk.partitions or set(disk.holders) - running:
            problems.append(f"{disk}: contains {', '.join(disk.partitions + disk.holders)}")
        elif disk.holders:
            remains.append(disk)
        elif (kind := contents(context, disk.path)) is None:
            continue
        elif len(disks) == 1 and kind == "xfs" and _label(context, disk.path) == NAME:
            return DiskPlan("mount", disks, source=disk.path)
        elif kind == "linux_raid_member" and (array := _membership(context, disk.path)) is not None:
            remains.append(disk)
            arrays.add(array)
        else:
            problems.append(f"{disk}: contains {kind}")
    if problems:
        raise NotReadyError("; ".join(problems) + ": refusing to format it", remedy=_REMEDY)
    if not remains:
        return DiskPlan("create", disks)
    complete = len(remains) == len(disks) and not running
    if complete and len(arrays) == 1 and {members for _, members in arrays} == {len(disks)}:
        return DiskPlan("assemble", disks)
    return DiskPlan("rebuild", disks, remains=tuple(remains), stale=tuple(sorted(running)))


def apply(context: Context, plan: DiskPlan) -> None:
    """Carry out the plan.

    Raises:
        StepError: A program failed.
    """
    target = str(context.layout.datasets)
    source = plan.source
    if plan.action in ("none", "mounted"):
        return
    if plan.action == "bind":
        assert source is not None
        directory = source / NAME / "datasets"
        _run(context, ["mkdir", "-p", str(directory), target])
        _run(context, ["mount", "--bind", str(directory), target])
        return
    if plan.action in ("assemble", "create", "rebuild"):
        require_program(context, "mkfs.xfs", package="xfsprogs")
        source = _bring_up(context, plan)
    assert source is not None
    # /proc/self/mounts lists the device, not a link to it.
    mount(context, str(source.resolve()), target, kind="xfs", options="noatime")


def _bring_up(context: Context, plan: DiskPlan) -> Path:
    """Assemble or create the array (unless there is only one disk) and its file system. Return the device."""
    paths = [str(disk.path) for disk in plan.disks]
    if len(paths) == 1:
        _run(context, ["mkfs.xfs", "-q", "-K", "-L", NAME, paths[0]])
        return Path(paths[0])
    require_program(context, "mdadm", package="mdadm")
    for array in plan.stale:
        _run(context, ["mdadm", "--stop", str(DEVICES / array)])
    if plan.action == "assemble":
        _run(context, ["mdadm", "--assemble", "--run", str(ARRAY), *paths])
        if _has_file_system(context, ARRAY):
            return ARRAY
    else:
        for disk in plan.remains:
            _run(context, ["mdadm", "--zero-superblock", str(disk.path)])
        command = ["mdadm", "--create", str(ARRAY), "--run", "--level", "0", "--name", NAME, "--homehost", "any"]
        _run(context, [*command, "--raid-devices", str(len(paths)), *paths])
    # -f: an array on reused disks contains old signatures. -K: instance store disks are already trimmed.
    _run(context, ["mkfs.xfs", "-q", "-f", "-K", "-L", NAME, str(ARRAY)])
    return ARRAY


def describe(context: Context, plan: DiskPlan) -> str:
    """Return a description of the plan."""
    names = ", ".join(map(str, plan.disks))
    target = context.layout.datasets
    words = {
        "none": "no instance store disks",
        "mounted": f"{names}: mounted at {target}",
        "bind": f"{names}: mounted by the image at {plan.source}; bind-mount a directory on them at {target}",
        "mount": f"{names}: mount {plan.source} at {target}",
        "assemble": f"{names}: assemble the array from an earlier boot and mount it at {target}",
        "create": f"{names}: blank; create an xfs file system (RAID 0 if several) at {target}",
        "rebuild": f"{names}: a disk in the array is missing; recreate the array and mount it at {target}",
    }
    return words[plan.action]


def _is_target_mounted(context: Context) -> bool:
    return mounted_source(context, str(context.layout.datasets)) is not None


def _is_our_array(context: Context, holder: str) -> bool:
    if re.fullmatch(r"md\d+|md_\w+", holder) is None:
        return False
    return _array_name(_export(context, ["mdadm", "--detail", "--export", str(DEVICES / holder)])) == NAME


def _membership(context: Context, path: Path) -> tuple[str, int] | None:
    """Return the id and disk count of the node program's array that a disk belongs to, or None."""
    found = _export(context, ["mdadm", "--examine", "--export", str(path)])
    return (found["MD_UUID"], int(found["MD_DEVICES"])) if _array_name(found) == NAME else None


def _array_name(found: dict[str, str]) -> str:
    return found.get("MD_NAME", "").rpartition(":")[2] if found.get("MD_LEVEL") == "raid0" else ""


def _has_file_system(context: Context, path: Path) -> bool:
    return _label(context, path) == NAME


def _label(context: Context, path: Path) -> str:
    command = ["blkid", "--probe", "--match-tag", "LABEL", "--output", "value", str(path)]
    try:
        return context.system.run(command, timeout_seconds=PROBE_SECONDS).strip()
    except CommandError:
        return ""  # without the label, the node program did not create it


def _export(context: Context, command: Sequence[str]) -> dict[str, str]:
    lines = _run(context, command).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _run(context: Context, command: Sequence[str]) -> str:
    try:
        return context.system.run(command, timeout_seconds=TOOL_SECONDS)
    except CommandError as error:
        raise StepError.from_command(
            error,
            message=f"the local disks: {' '.join(command[:2])}",
            remedy="see the output and the kernel log; the image needs mdadm and xfsprogs",
        ) from error
