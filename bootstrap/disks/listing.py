"""The machine's NVMe disks: serial numbers, models, users and contents.

Disks are identified by serial number, because the kernel numbers them in discovery order. A mistake here would destroy
data, so `contents` makes three checks: wipefs signatures, blkid signatures, and the first and last MiB, which are zero
on a blank disk.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bootstrap.context import Context
from bootstrap.errors import CommandError, NotReadyError, StepError

BLOCK_DEVICES = Path("/sys/block")
DEVICES = Path("/dev")
MOUNT_TABLE = Path("/proc/self/mountinfo")
EDGE_BYTES = 1024**2
PROBE_SECONDS = 60.0
NOTHING_FOUND = 2
"""blkid's exit code for a disk without signatures."""


@dataclass(frozen=True)
class Disk:
    """A disk.

    Attributes:
        name: Kernel name, such as nvme1n1; changes between boots.
        serial: Serial number.
        model: Model reported by the disk.
        partitions: Names of its partitions.
        holders: Names of the arrays and logical volumes on the disk or its partitions.
        mounts: Mount points of the disk, its partitions and its holders.
    """

    name: str
    serial: str
    model: str
    partitions: tuple[str, ...]
    holders: tuple[str, ...]
    mounts: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The device file."""
        return DEVICES / self.name

    def __str__(self) -> str:
        return f"{self.path} (serial {self.serial or 'unknown'})"


def list_disks(context: Context) -> list[Disk]:
    """Return the machine's NVMe disks, sorted by serial number."""
    mounted = [(number, Path(source).name, point) for number, source, _, point in _mounts(context)]
    names = [name for name in context.system.list_directory(BLOCK_DEVICES) if re.fullmatch(r"nvme\d+n\d+", name)]
    return sorted((_disk(context, name, mounted) for name in names), key=lambda disk: (disk.serial, disk.name))


def _disk(context: Context, name: str, mounted: list[tuple[str, str, str]]) -> Disk:
    folder = BLOCK_DEVICES / name
    entries = context.system.list_directory(folder)
    partitions = tuple(entry for entry in entries if re.fullmatch(re.escape(name) + r"p\d+", entry))
    holders: list[str] = []
    for below in (folder, *(folder / partition for partition in partitions)):
        _add_holders(context, below, holders)
    devices = {name: folder, **{partition: folder / partition for partition in partitions}}
    devices.update({holder: BLOCK_DEVICES / holder for holder in holders})
    numbers = {_attribute(context, path / "dev") for path in devices.values()} - {""}
    mounts = [point for number, source, point in mounted if number in numbers or source in devices]
    return Disk(
        name=name,
        serial=_attribute(context, folder / "device" / "serial"),
        model=_attribute(context, folder / "device" / "model"),
        partitions=partitions,
        holders=tuple(holders),
        mounts=tuple(mounts),
    )


def _add_holders(context: Context, folder: Path, found: list[str]) -> None:
    """Add the holders of a block device, recursively."""
    for holder in context.system.list_directory(folder / "holders"):
        if holder not in found:
            found.append(holder)
            _add_holders(context, BLOCK_DEVICES / holder, found)


def _mounts(context: Context) -> Iterator[tuple[str, str, str, str]]:
    """Yield the device number, source, type and mount point of each mount.

    The number identifies a root file system that is listed as /dev/root. The source identifies a file system that uses
    its own device numbers (btrfs).
    """
    for line in (context.system.read(MOUNT_TABLE) or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if len(fields) > 4 and len(rest) > 1:
            yield fields[2], rest[1], rest[0], fields[4]


def source_of(context: Context, path: Path) -> tuple[Path, str]:
    """Return the source and type of the file system that contains a path.

    Raises:
        OSError: The path does not exist.
    """
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    found = ((Path(source), kind) for number, source, kind, _ in _mounts(context) if number == wanted)
    return next(found, (Path("unknown"), "unknown"))


def _attribute(context: Context, path: Path) -> str:
    return (context.system.read(path) or "").strip()


def contents(context: Context, path: Path) -> str | None:
    """Return a description of the data on an unused disk, or None if it is blank.

    Raises:
        NotReadyError: The disk is in use.
        StepError: The disk cannot be read.
    """
    try:
        listed = context.system.run(
            ["wipefs", "--no-act", "--noheadings", "--output", "TYPE", str(path)], timeout_seconds=PROBE_SECONDS
        )
    except CommandError as error:
        raise StepError.from_command(
            error, message=f"{path}: cannot inspect the disk", remedy="see the output of wipefs"
        ) from error
    kinds = sorted(set(listed.split())) or _probed(context, path)
    if kinds:
        return ", ".join(kinds)
    try:
        edges = context.system.read_edges(path, EDGE_BYTES)
    except OSError as error:
        kind = NotReadyError if error.errno == errno.EBUSY else StepError
        raise kind(
            f"{path}: cannot read the disk to check that it is blank ({error})",
            remedy="see the kernel log, and check what uses the disk (lsblk)",
        ) from error
    return "data of an unknown type" if any(edges) else None


def _probed(context: Context, path: Path) -> list[str]:
    command = ["blkid", "--probe", "--output", "export", str(path)]
    try:
        text = context.system.run(command, timeout_seconds=PROBE_SECONDS)
    except CommandError as error:
        if error.exit_code == NOTHING_FOUND:
            return []
        raise StepError.from_command(
            error, message=f"{path}: cannot inspect the disk", remedy="see the output of blkid"
        ) from error
    return re.findall(r"^(?:TYPE|PTTYPE)=(.+)$", text, re.MULTILINE) or (
        ["an unknown signature"] if text.strip() else []
    )
