"""Boot step: attach the EBS volumes in the node document, format blank ones, and mount them.

On Nitro instances, the kernel numbers disks in discovery order, so a disk is identified by its serial number, which is
the volume id. On older instances, it is identified by its device name.
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
from bootstrap.boot_steps.step_runner import Step
from bootstrap.context import Context
from bootstrap.disks.listing import BLOCK_DEVICES, DEVICES, NOTHING_FOUND, contents
from bootstrap.disks.mounting import mount, mounted_source
from bootstrap.disks.volume_copy import (
    NO_COPY_NEEDED,
    delete_on_termination,
    emit_copy,
    find_or_create_copy,
    is_attached,
)
from bootstrap.documents import Volume
from bootstrap.errors import BootstrapError, CommandError, NotReadyError, StepError
from bootstrap.events.schema import VolumeInitialization

logger = logging.getLogger(__name__)

APPEAR_SECONDS = 120.0
POLL_SECONDS = 1.0
TOOL_SECONDS = 600.0
# EC2 error codes for a volume that is attached to another instance.
# Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html (2026-11).
_TAKEN = ("VolumeInUse", "AttachmentLimitExceeded")
# User data may start while EC2 still lists the instance as pending. AttachVolume then fails with "Instance 'i-...' is
# not 'running'". It also fails while the volume is still being created.
# Sources (2026-11): the same page, and https://github.com/ansible-collections/amazon.aws/pull/497.
_LATE = ("IncorrectState", "IncorrectInstanceState")
# DescribeVolumes is eventually consistent: the volumes of a new instance may be missing at first.
# Source (2026-11): https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html.
EC2_SECONDS = 120.0
# Read-only and without journal replay, because other nodes read the same disk at the same time.
_SHARED_OPTIONS = {"ext4": "ro,noload", "xfs": "ro,norecovery,nouuid"}


class Volumes(Step):
    """Attach this node's EBS volumes, format blank ones, and mount them."""

    name = "volumes"
    after = ("identity",)

    def act(self, context: Context) -> None:
        """Attach and mount each volume in this zone, and copies of volumes in other zones."""
        for volume in context.node.volumes:
            if not _is_elsewhere(context, volume):
                attach_and_mount(context, volume)
            elif volume.restored_elsewhere:
                _mount_copy(context, volume)

    def verify(self, context: Context) -> None:
        """Check all mounts except checkpoint volumes, because checkpoints are also in S3."""
        missing = [
            volume.mount
            for volume in context.node.volumes
            if volume.kind != "checkpoint"
            and not _is_elsewhere(context, volume)
            and mounted_source(context, volume.mount) is None
        ]
        if missing:
            raise StepError(f"not mounted: {', '.join(missing)}", remedy="see the earlier events; boot again")

    def intent(self, context: Context) -> list[str]:
        """Describe the mounts, without calling EC2."""
        return [_description(volume) for volume in context.node.volumes]


def _description(volume: Volume) -> str:
    which = volume.volume_id or f"{volume.device} of the launch template"
    zone = f", on nodes in {volume.availability_zone}" if volume.availability_zone else ""
    access = "read-only" if volume.read_only else "formatted as xfs if blank"
    copy = "; in other zones, a copy from its newest snapshot that is deleted with the instance"
    copy = copy if volume.restored_elsewhere else ""
    return f"{volume.mount}: {volume.kind} volume {which}{zone}; {access}{copy}"


def _mount_copy(context: Context, volume: Volume) -> None:
    """Create or find a copy of a checkpoint volume in another zone, mount it, and emit the outcome."""
    copy, problem = None, None
    try:
        copy = attached = find_or_create_copy(context, volume)
        local = replace(volume, volume_id=copy.volume_id)
        if not attach_and_mount(context, local, on_attached=lambda: delete_on_termination(context, volume, attached)):
            raise StepError(f"another instance attached the copy {copy.volume_id}", remedy=NO_COPY_NEEDED)
    except StepError as error:
        problem = error
    except (BootstrapError, OSError) as error:
        problem = StepError(str(error), remedy="see the message; S3 has every checkpoint")
    if copy is None or mounted_source(context, volume.mount) is None:
        emit_copy(context, volume, "none", copy, problem)
    else:
        emit_copy(context, volume, "created" if copy.is_new else "found", copy, problem)


def attach_and_mount(context: Context, volume: Volume, on_attached: Callable[[], None] = lambda: None) -> bool:
    """Attach and mount a volume. Return False if it is attached to another instance.

    `on_attached` is called once the disk exists, before it is inspected.

    Raises:
        StepError: The volume does not exist, does not contain a file system, or cannot be attached or mounted.
    """
    found = context.wait_until_ready(lambda: _describe(context, volume), limit_seconds=EC2_SECONDS)
    volume_id = str(found["VolumeId"])
    if not is_attached(context, found) and not _attach(context, volume, found):
        logger.warning("%s: not available; this node runs without %s", volume_id, volume.mount)
        return False
    _check_initialization(context, volume, found)
    device = _wait_for_device(context, volume, volume_id)
    on_attached()
    kind = _file_system(context, device, volume_id)
    if kind is None:
        kind = _format(context, volume, device, found)
    options = "noatime"
    if volume.read_only:
        options = _SHARED_OPTIONS.get(kind, "ro") if volume.kind == "shared" else "ro"
    mount(context, device, volume.mount, kind=kind, options=options)
    if kind == "xfs" and not volume.read_only:
        # The volume may have grown since it was formatted. Otherwise, this call does nothing.
        _run(context, ["xfs_growfs", volume.mount], f"{volume.mount}: cannot grow the file system")
    return True


def _check_initialization(context: Context, volume: Volume, found: Mapping[str, Any]) -> None:
    """Check that EBS initializes the volume as configured. If not, mark its files for the pre-warm.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Volume.html (2026-11).
    """
    if volume.initialization == "provisioned_rate":
        enabled = bool(found.get("VolumeInitializationRate"))
        remedy = "launch from the latest launch template version; check its snapshot id and initialization rate"
    elif volume.initialization == "fast_snapshot_restore":
        enabled = bool(found.get("FastRestored"))
        remedy = "enable fast snapshot restore for the snapshot in this zone, and wait for credits; or set warm: blocks"
    else:
        return
    context.events.emit(
        VolumeInitialization(
            volume_id=found["VolumeId"],
            mount=volume.mount,
            mode=volume.initialization,
            enabled=enabled,
            mib_per_second=found.get("VolumeInitializationRate"),
            remedy=None if enabled else remedy,
        )
    )
    if not enabled:
        logger.warning("%s: %s is not enabled; pre-warming its files", found["VolumeId"], volume.initialization)
        context.uninitialized_mounts.add(volume.mount)


def _is_elsewhere(context: Context, volume: Volume) -> bool:
    assert context.identity is not None
    return volume.availability_zone not in (None, context.identity.availability_zone)


def _describe(context: Context, volume: Volume) -> Mapping[str, Any]:
    """Return a volume's description, looked up by id, or by device if the launch template created the volume.

    Raises:
        NotReadyError: EC2 does not list the volume.
        StepError: The call failed.
    """
    assert context.identity is not None
    request: dict[str, Any] = {"VolumeIds": [volume.volume_id]}
    if volume.volume_id is None:
        mine = {"Name": "attachment.instance-id", "Values": [context.identity.instance_id]}
        request = {"Filters": [mine, {"Name": "attachment.device", "Values": [volume.device]}]}
    try:
        found: list[Mapping[str, Any]] = _ec2(context).describe_volumes(**request)["Volumes"]
    except AWS_ERRORS as error:
        raise StepError(
            f"{volume.mount}: ec2:DescribeVolumes failed ({error})",
            remedy="check the ec2 endpoint, and check that the node role allows ec2:DescribeVolumes",
        ) from error
    if not found:
        raise NotReadyError(
            f"{volume.mount}: this instance has no volume {volume.device}",
            remedy="launch it from the deployment's launch template, which creates the volume",
        )
    return found[0]


def _attach(context: Context, volume: Volume, found: Mapping[str, Any]) -> bool:
    """Attach a volume. Return False if a checkpoint volume, which is only a cache, cannot be attached now."""
    volume_id = str(found["VolumeId"])
    try:
        return context.wait_until_ready(lambda: _try_to_attach(context, volume, volume_id), limit_seconds=EC2_SECONDS)
    except NotReadyError as error:
        if volume.kind != "checkpoint":
            raise
        logger.warning("%s", error.message)
        return False


def _try_to_attach(context: Context, volume: Volume, volume_id: str) -> bool:
    assert context.identity is not None
    try:
        _ec2(context).attach_volume(VolumeId=volume_id, InstanceId=context.identity.instance_id, Device=volume.device)
    except AWS_ERRORS as error:
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else ""
        if code in _TAKEN and volume.kind == "checkpoint":
            return False
        kind = NotReadyError if code in _LATE else StepError
        raise kind(
            f"{volume_id}: cannot attach as {volume.device} ({error})",
            remedy="check the volume's state and zone, and check that the node role allows ec2:AttachVolume",
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
                f"{volume_id}: its disk did not appear within {APPEAR_SECONDS:g} seconds of the attachment",
                remedy="check that the image has the NVMe driver; see the kernel log",
            )
        context.system.sleep(POLL_SECONDS)


def _device(context: Context, volume: Volume, volume_id: str) -> str | None:
    for name in context.system.list_directory(BLOCK_DEVICES):
        if re.fullmatch(r"nvme\d+n\d+", name):
            serial = (context.system.read(BLOCK_DEVICES / name / "device" / "serial") or "").strip()
            if serial.replace("-", "") == volume_id.replace("-", ""):
                return str(DEVICES / name)
    old = "xvd" + volume.device[-1]  # Xen's name for /dev/sdf
    return str(DEVICES / old) if old in context.system.list_directory(BLOCK_DEVICES) else None


def _file_system(context: Context, device: str, volume_id: str) -> str | None:
    """Return the file system type on a disk, or None if blkid does not detect one."""
    try:
        kind = context.system.run(
            ["blkid", "--probe", "--match-tag", "TYPE", "--output", "value", device], timeout_seconds=60
        )
    except CommandError as error:
        if error.exit_code == NOTHING_FOUND:
            return None
        raise StepError.from_command(
            error, message=f"{device}: cannot inspect the disk", remedy="see the output of blkid"
        ) from error
    if not kind.strip():
        raise StepError(
            f"{device}: {volume_id} contains data but no file system (for example, a partition table)",
            remedy="create a file system on the unpartitioned disk; the node formats only blank disks",
        )
    return kind.strip()


def _format(context: Context, volume: Volume, device: str, found: Mapping[str, Any]) -> str:
    """Create a file system on a blank disk unless the disk should already contain data. Return its type."""
    if volume.read_only or found.get("SnapshotId"):
        raise StepError(
            f"{device}: {found['VolumeId']} ({volume.kind}) is blank, expected data",
            remedy="create it from a snapshot with a file system on the unpartitioned disk (ext4 or xfs)",
        )
    held = contents(context, Path(device))
    if held is not None:
        raise StepError(
            f"{device}: {found['VolumeId']} ({volume.kind}) is not blank (found {held}): refusing to format it",
            remedy="create a file system on the unpartitioned disk, or erase it (wipefs --all) if nothing is needed",
        )
    # Without --force: mkfs.xfs refuses a disk with a known signature.
    _run(context, ["mkfs.xfs", "-q", device], f"{device}: cannot format")
    logger.info("%s: formatted as xfs", device)
    return "xfs"


def _ec2(context: Context) -> Any:
    return context.aws.client("ec2", patience="high")


def _run(context: Context, command: list[str], message: str) -> None:
    try:
        context.system.run(command, timeout_seconds=TOOL_SECONDS)
    except CommandError as error:
        remedy = "see the output of the program; the image needs xfsprogs"
        raise StepError.from_command(error, message=message, remedy=remedy) from error
