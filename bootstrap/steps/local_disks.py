"""Boot step: the NVMe disks of the machine itself (instance store), striped, and mounted where datasets are staged.

What is on them is scratch: it is lost when the machine stops, outlives a reboot, and is rebuilt when one disk lacks. An
array or file system is known as ours by its name. Disks that the image has mounted already (AWS's deep learning images
do that) are used where they are.
Sources (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ssd-instance-store.html,
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-store-lifetime.html, mdadm(8).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context, Step
from bootstrap.steps.disks import DEVICES, PROBE_SECONDS, Disk, contents, list_disks
from bootstrap.steps.mounting import mount, mounted_source
from bootstrap.steps.packages import need_program

logger = logging.getLogger(__name__)

MODEL = "Amazon EC2 NVMe Instance Storage"
NAME = "trainstack"
"""Name of our array, and label of our file system."""
ARRAY = DEVICES / "md" / NAME
TOOL_SECONDS = 300.0
_REMEDY = "when nothing on it is needed, empty it (wipefs --all DISK, and blkdiscard DISK), and boot again"


@dataclass(frozen=True)
class Arrangement:
    """What is to be done with the disks.

    Attributes:
        action: `none` there are no such disks; `mounted` all is done; `borrow` the image mounted them at `source`;
            `mount` the file system on `source`; `assemble` the array of `disks`, then mount; `make` array and file
            system on blank disks; `rebuild` the same, where some hold the rest of an array of ours.
        disks: by serial.
        remains: those of `disks` that hold the rest of an array of ours.
        stale: running arrays to stop before.
    """

    action: str
    disks: tuple[Disk, ...] = ()
    source: Path | None = None
    remains: tuple[Disk, ...] = ()
    stale: tuple[str, ...] = ()


class LocalDisks(Step):
    """Stripe the machine's own NVMe disks (RAID 0), formatted only when blank, and mount them for datasets."""

    name = "local_disks"

    def act(self, context: Context) -> None:
        """Find out what the disks need, and do it."""
        if len(_own_disks(context)) > 1:
            need_program(context, "mdadm", package="mdadm")
        arrangement = arrange(context)
        logger.info("%s", describe(context, arrangement))
        try:
            carry_out(context, arrangement)
        except StepError:
            # A service of the image may have taken the disks meanwhile: then it is theirs, and we use its mount.
            again = arrange(context)
            if again.action != "borrow":
                raise
            carry_out(context, again)

    def verify(self, context: Context) -> None:
        """The disks are mounted, when there are any."""
        action = arrange(context).action
        if action not in ("none", "mounted"):
            raise StepError(
                f"{context.layout.datasets}: the local disks are not mounted ({action} is still to be done)",
                remedy="see the events before, and what the kernel says of the disks; boot again",
            )

    def intent(self, context: Context) -> list[str]:
        """Say what would be done."""
        return [describe(context, arrange(context))]


def arrange(context: Context) -> Arrangement:
    """Look at the disks, changing nothing, and say what they need.

    Raises:
        StepError: One holds what is not ours.
    """
    disks = _own_disks(context)
    if not disks:
        return Arrangement("none")
    target = str(context.layout.datasets)
    mounts = sorted({point for disk in disks for point in disk.mounts})
    if target in mounts or _is_borrowed(context):
        return Arrangement("mounted", disks)
    if mounts:
        return Arrangement("borrow", disks, source=Path(mounts[0]))
    ours = {holder for disk in disks for holder in disk.holders if _is_our_array(context, holder)}
    whole = len(ours) == 1 and all(disk.holders == tuple(ours) for disk in disks)
    if whole and _has_file_system(context, DEVICES / min(ours)):
        return Arrangement("mount", disks, source=DEVICES / min(ours))
    return _arrange_unused(context, disks, ours)


def _own_disks(context: Context) -> tuple[Disk, ...]:
    """Return the instance-store disks by serial; never the one that the system runs from."""
    if not context.metadata.is_of_this_machine:
        return ()
    return tuple(disk for disk in list_disks(context) if disk.model == MODEL and "/" not in disk.mounts)


def _arrange_unused(context: Context, disks: tuple[Disk, ...], running: set[str]) -> Arrangement:
    """Judge disks of which none is mounted; `running` are arrays of ours that lack a disk or a file system."""
    remains, arrays, problems = [], set(), []
    for disk in disks:
        if disk.partitions or set(disk.holders) - running:
            problems.append(f"{disk}: {', '.join(disk.partitions + disk.holders)} stands on it")
        elif disk.holders:
            remains.append(disk)
        elif (kind := contents(context, disk.path)) is None:
            continue
        elif len(disks) == 1 and kind == "xfs" and _label(context, disk.path) == NAME:
            return Arrangement("mount", disks, source=disk.path)
        elif kind == "linux_raid_member" and (array := _membership(context, disk.path)) is not None:
            remains.append(disk)
            arrays.add(array)
        else:
            problems.append(f"{disk}: holds {kind}")
    if problems:
        raise StepError("; ".join(problems) + ": is never formatted", remedy=_REMEDY)
    if not remains:
        return Arrangement("make", disks)
    complete = len(remains) == len(disks) and not running
    if complete and len(arrays) == 1 and {members for _, members in arrays} == {len(disks)}:
        return Arrangement("assemble", disks)
    return Arrangement("rebuild", disks, remains=tuple(remains), stale=tuple(sorted(running)))


def carry_out(context: Context, arrangement: Arrangement) -> None:
    """Do what `arrange` found.

    Raises:
        StepError: A program fails.
    """
    target = str(context.layout.datasets)
    source = arrangement.source
    if arrangement.action in ("none", "mounted"):
        return
    if arrangement.action == "borrow":
        assert source is not None
        folder = source / NAME / "datasets"
        _run(context, ["mkdir", "-p", str(folder), target])
        _run(context, ["mount", "--bind", str(folder), target])
        return
    need_program(context, "mkfs.xfs", package="xfsprogs")
    if arrangement.action in ("assemble", "make", "rebuild"):
        source = _bring_up(context, arrangement)
    assert source is not None
    # /proc/self/mounts names the device itself, never a link to it.
    mount(context, str(source.resolve()), target, kind="xfs", options="noatime")


def _bring_up(context: Context, arrangement: Arrangement) -> Path:
    """Assemble or make the array (for one disk there is none), with its file system; return its device."""
    paths = [str(disk.path) for disk in arrangement.disks]
    if len(paths) == 1:
        _run(context, ["mkfs.xfs", "-q", "-K", "-L", NAME, paths[0]])
        return Path(paths[0])
    for array in arrangement.stale:
        _run(context, ["mdadm", "--stop", str(DEVICES / array)])
    if arrangement.action == "assemble":
        _run(context, ["mdadm", "--assemble", "--run", str(ARRAY), *paths])
        if _has_file_system(context, ARRAY):
            return ARRAY
    else:
        for disk in arrangement.remains:
            _run(context, ["mdadm", "--zero-superblock", str(disk.path)])
        command = ["mdadm", "--create", str(ARRAY), "--run", "--level", "0", "--name", NAME, "--homehost", "any"]
        _run(context, [*command, "--raid-devices", str(len(paths)), *paths])
    # -f: a new array of old disks shows what an array before had there; -K: the disks come trimmed.
    _run(context, ["mkfs.xfs", "-q", "-f", "-K", "-L", NAME, str(ARRAY)])
    return ARRAY


def describe(context: Context, arrangement: Arrangement) -> str:
    """Say an arrangement in words."""
    names = ", ".join(map(str, arrangement.disks))
    target = context.layout.datasets
    words = {
        "none": "this machine has no local NVMe disks of its own",
        "mounted": f"{names}: mounted at {target}",
        "borrow": f"{names}: the image mounted them at {arrangement.source}; a folder there becomes {target}",
        "mount": f"{names}: {arrangement.source} is mounted at {target}",
        "assemble": f"{names}: the array of an earlier boot is assembled, and mounted at {target}",
        "make": f"{names}: blank; become one xfs file system (RAID 0 when several) at {target}",
        "rebuild": f"{names}: an array of ours lacks a disk; it is made anew, and mounted at {target}",
    }
    return words[arrangement.action]


def _is_borrowed(context: Context) -> bool:
    return mounted_source(context, str(context.layout.datasets)) is not None


def _is_our_array(context: Context, holder: str) -> bool:
    if re.fullmatch(r"md\d+|md_\w+", holder) is None:
        return False
    return _array_name(_export(context, ["mdadm", "--detail", "--export", str(DEVICES / holder)])) == NAME


def _membership(context: Context, path: Path) -> tuple[str, int] | None:
    """Return id and size of the array of ours that a disk was part of; None when it is another's."""
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
        return ""  # not labelled as ours, whatever it is


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
            remedy="see the program's last lines and the kernel's; the image needs mdadm and xfsprogs",
        ) from error
