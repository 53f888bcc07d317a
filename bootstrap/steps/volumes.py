"""Boot step: the EBS volumes of the node document, attached, formatted only when blank, and mounted.

A disk is found by the serial number that EBS gives it on Nitro machines, since the kernel numbers disks as they come;
on older machines by its device name.
Source: https://docs.aws.amazon.com/ebs/latest/userguide/nvme-ebs-volumes.html (2026-11).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from bootstrap.aws import AWS_ERRORS
from bootstrap.documents import Volume
from bootstrap.errors import BootstrapError, CommandError, StepError
from bootstrap.plan import Context, Step
from bootstrap.steps.disks import BLOCK_DEVICES, DEVICES, NOTHING_FOUND, contents
from bootstrap.steps.mounting import mount, mounted_source
from bootstrap.steps.volume_copy import NO_COPY_NEEDED, have_copy, is_attached, let_go_with_machine, tell

logger = logging.getLogger(__name__)

APPEAR_SECONDS = 120.0
POLL_SECONDS = 1.0
TOOL_SECONDS = 600.0
# What EC2 answers when another machine was faster.
# Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html (2026-11).
_TAKEN = ("VolumeInUse", "IncorrectState", "AttachmentLimitExceeded")
# Read-only without replaying a journal: the others that attach the disk read it at the same time.
_SHARED_OPTIONS = {"ext4": "ro,noload", "xfs": "ro,norecovery,nouuid"}


class Volumes(Step):
    """Attach, format when blank, and mount the EBS volumes of this node, or a copy of one of another zone."""

    name = "volumes"
    after = ("identity",)

    def act(self, context: Context) -> None:
        """Attach and mount each volume that this node can have."""
        for volume in context.node.volumes:
            if not _is_elsewhere(context, volume):
                bring(context, volume)
            elif volume.restored_elsewhere:
                _bring_copy(context, volume)

    def verify(self, context: Context) -> None:
        """What the launch template made, and what all nodes share, is mounted; checkpoints are in S3 as well."""
        missing = [
            volume.mount
            for volume in context.node.volumes
            if volume.kind != "checkpoint"
            and not _is_elsewhere(context, volume)
            and mounted_source(context, volume.mount) is None
        ]
        if missing:
            raise StepError(f"not mounted: {', '.join(missing)}", remedy="see the events before; boot again")

    def intent(self, context: Context) -> list[str]:
        """Say what would be mounted; EC2 is not asked."""
        return [_in_words(volume) for volume in context.node.volumes]


def _in_words(volume: Volume) -> str:
    which = volume.volume_id or f"the machine's {volume.device}"
    zone = f", on nodes in {volume.availability_zone}" if volume.availability_zone else ""
    access = "read-only" if volume.read_only else "formatted as xfs when blank"
    copy = (
        "; on others a copy from its newest snapshot, which goes with the machine" if volume.restored_elsewhere else ""
    )
    return f"{volume.mount}: {volume.kind} volume {which}{zone}; {access}{copy}"


def _bring_copy(context: Context, volume: Volume) -> None:
    """Have a copy of a checkpoint volume of another zone, or say in one event why this node goes without."""
    copy, problem = None, None
    try:
        copy = made = have_copy(context, volume)
        there = replace(volume, volume_id=copy.volume_id)
        if not bring(context, there, on_disk=lambda: let_go_with_machine(context, volume, made)):
            raise StepError(f"another machine took the copy {copy.volume_id}", remedy=NO_COPY_NEEDED)
    except StepError as error:
        problem = error
    except (BootstrapError, OSError) as error:
        problem = StepError(str(error), remedy="see the message; S3 has every checkpoint")
    is_there = copy is not None and mounted_source(context, volume.mount) is not None
    tell(
        context,
        volume,
        "without" if copy is None or not is_there else "made" if copy.is_new else "found",
        copy,
        problem,
    )


def bring(context: Context, volume: Volume, on_disk: Callable[[], None] = lambda: None) -> bool:
    """Attach and mount a volume; one that another machine holds is left to it, and the answer False.

    `on_disk` is called when the disk is there, before anything is done with it.

    Raises:
        StepError: It is not there, holds what is no file system, or cannot be attached or mounted.
    """
    found = _describe(context, volume)
    volume_id = str(found["VolumeId"])
    if not is_attached(context, found) and not _attach(context, volume, found):
        logger.warning("volume %s: another machine has it; this node goes without %s", volume_id, volume.mount)
        return False
    _check_initialization(context, volume, found)
    device = _wait_for_device(context, volume, volume_id)
    on_disk()
    kind = _file_system(context, device, volume_id)
    if kind is None:
        kind = _format(context, volume, device, found)
    options = "noatime"
    if volume.read_only:
        options = _SHARED_OPTIONS.get(kind, "ro") if volume.kind == "shared" else "ro"
    mount(context, device, volume.mount, kind=kind, options=options)
    if kind == "xfs" and not volume.read_only:
        # The volume may have grown since it was formatted; on one that has not, this does nothing.
        _run(context, ["xfs_growfs", volume.mount], f"{volume.mount}: cannot be grown to the volume's size")
    return True


def _check_initialization(context: Context, volume: Volume, found: Mapping[str, Any]) -> None:
    """Make sure that EBS loads the volume as promised; where it does not, have its files read.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Volume.html (2026-11).
    """
    if volume.initialization == "provisioned_rate":
        is_on = bool(found.get("VolumeInitializationRate"))
        remedy = "launch from the newest launch template version; check that its snapshot id and rate are set"
    elif volume.initialization == "fast_snapshot_restore":
        is_on = bool(found.get("FastRestored"))
        remedy = "enable fast snapshot restore of the snapshot in this zone, and wait for its credits; or warm: blocks"
    else:
        return
    context.events.emit(
        "volume_initialization",
        volume_id=found["VolumeId"],
        mount=volume.mount,
        mode=volume.initialization,
        is_on=is_on,
        mib_per_second=found.get("VolumeInitializationRate"),
        remedy=None if is_on else remedy,
    )
    if not is_on:
        logger.warning("%s: %s is not on; its files are read instead", found["VolumeId"], volume.initialization)
        context.unloaded.add(volume.mount)


def _is_elsewhere(context: Context, volume: Volume) -> bool:
    assert context.identity is not None
    return volume.availability_zone not in (None, context.identity.availability_zone)


def _describe(context: Context, volume: Volume) -> Mapping[str, Any]:
    """Return what EC2 says of a volume: by id, or as the device that the launch template made."""
    assert context.identity is not None
    request: dict[str, Any] = {"VolumeIds": [volume.volume_id]}
    if volume.volume_id is None:
        mine = {"Name": "attachment.instance-id", "Values": [context.identity.instance_id]}
        request = {"Filters": [mine, {"Name": "attachment.device", "Values": [volume.device]}]}
    try:
        found: list[Mapping[str, Any]] = context.aws.client("ec2").describe_volumes(**request)["Volumes"]
    except AWS_ERRORS as error:
        raise StepError(
            f"{volume.mount}: EC2 does not say where its volume is ({error})",
            remedy="check the ec2 endpoint, and ec2:DescribeVolumes of the node role",
        ) from error
    if not found:
        raise StepError(
            f"{volume.mount}: this machine has no volume {volume.device}",
            remedy="launch it from the deployment's launch template, which makes that volume",
        )
    return found[0]


def _attach(context: Context, volume: Volume, found: Mapping[str, Any]) -> bool:
    """Attach a volume; return False when another machine has it."""
    assert context.identity is not None
    volume_id = str(found["VolumeId"])
    try:
        context.aws.client("ec2").attach_volume(
            VolumeId=volume_id, InstanceId=context.identity.instance_id, Device=volume.device
        )
    except AWS_ERRORS as error:
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else ""
        if code in _TAKEN and volume.kind == "checkpoint":
            return False
        raise StepError(
            f"{volume_id}: cannot be attached as {volume.device} ({error})",
            remedy="check the volume's state and zone, and ec2:AttachVolume of the node role",
        ) from error
    return True


def _wait_for_device(context: Context, volume: Volume, volume_id: str) -> str:
    deadline = context.system.monotonic_seconds() + APPEAR_SECONDS
    while True:
        device = _device(context, volume, volume_id)
        if device is not None:
            return device
        if context.system.monotonic_seconds() >= deadline:
            raise StepError(
                f"{volume_id}: no disk of it appeared within {APPEAR_SECONDS:g} seconds of its attachment",
                remedy="check that the image has the NVMe driver, and what the kernel says",
            )
        context.system.sleep(POLL_SECONDS)


def _device(context: Context, volume: Volume, volume_id: str) -> str | None:
    for name in context.system.list_directory(BLOCK_DEVICES):
        if re.fullmatch(r"nvme\d+n\d+", name):
            serial = (context.system.read(BLOCK_DEVICES / name / "device" / "serial") or "").strip()
            if serial.replace("-", "") == volume_id.replace("-", ""):
                return str(DEVICES / name)
    old = "xvd" + volume.device[-1]  # what Xen makes of /dev/sdf
    return str(DEVICES / old) if old in context.system.list_directory(BLOCK_DEVICES) else None


def _file_system(context: Context, device: str, volume_id: str) -> str | None:
    """Return the type of the file system on a disk, or None when the disk is blank."""
    try:
        kind = context.system.run(
            ["blkid", "--probe", "--match-tag", "TYPE", "--output", "value", device], timeout_seconds=60
        )
    except CommandError as error:
        if error.exit_code == NOTHING_FOUND:
            return None
        raise StepError.from_command(
            error, message=f"{device}: cannot be looked at", remedy="see what blkid says of the disk"
        ) from error
    if not kind.strip():
        raise StepError(
            f"{device}: {volume_id} holds something that is no file system (a partition table, say)",
            remedy="put a file system on the whole disk; it is not formatted, since data may be on it",
        )
    return kind.strip()


def _format(context: Context, volume: Volume, device: str, found: Mapping[str, Any]) -> str:
    """Make a file system on a blank disk that nobody promised data on; return its type."""
    if volume.read_only or found.get("SnapshotId"):
        raise StepError(
            f"{device}: {found['VolumeId']} ({volume.kind}) is blank, and should hold data",
            remedy="make it from a snapshot with a file system on the whole disk (ext4 or xfs)",
        )
    held = contents(context, Path(device))
    if held is not None:
        raise StepError(
            f"{device}: {found['VolumeId']} ({volume.kind}) is not blank, it holds {held}: is never formatted",
            remedy="put a file system on the whole disk yourself, or empty it (wipefs --all) when nothing is needed",
        )
    # Without --force: mkfs.xfs refuses a disk that holds anything that it knows.
    _run(context, ["mkfs.xfs", "-q", device], f"{device}: cannot be formatted")
    logger.info("%s: was blank, and is xfs now", device)
    return "xfs"


def _run(context: Context, command: list[str], message: str) -> None:
    try:
        context.system.run(command, timeout_seconds=TOOL_SECONDS)
    except CommandError as error:
        remedy = "see the program's last lines; the image needs xfsprogs"
        raise StepError.from_command(error, message=message, remedy=remedy) from error
