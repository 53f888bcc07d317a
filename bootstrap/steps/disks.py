"""The disks of the machine as the kernel lists them: serial, model, what uses them, and whether one is truly blank.

A disk is never known by its name, since the kernel numbers disks as they come. Whether something on one is lost by a
mistake is decided here, so everything is looked at three times: by the signatures that wipefs knows, by those that
blkid knows, and by the first and last MiB, which a blank disk has all zero.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context

BLOCK_DEVICES = Path("/sys/block")
DEVICES = Path("/dev")
MOUNT_TABLE = Path("/proc/self/mountinfo")
EDGE_BYTES = 1024**2
PROBE_SECONDS = 60.0
NOTHING_FOUND = 2
"""Exit code of blkid for a disk on which it finds nothing."""


@dataclass(frozen=True)
class Disk:
    """A whole disk.

    Attributes:
        name: of this boot only, such as nvme1n1.
        serial: for good.
        model: as the disk itself says.
        partitions: names of its partitions.
        holders: names of the arrays and logical volumes that stand on it or its partitions.
        mounts: where it, or something that stands on it, is mounted.
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
    """Return the NVMe disks of the machine by serial number."""
    mounted = _mounts(context)
    names = [name for name in context.system.list_directory(BLOCK_DEVICES) if re.fullmatch(r"nvme\d+n\d+", name)]
    return sorted((_disk(context, name, mounted) for name in names), key=lambda disk: (disk.serial, disk.name))


def _disk(context: Context, name: str, mounted: list[tuple[str, str, str]]) -> Disk:
    folder = BLOCK_DEVICES / name
    entries = context.system.list_directory(folder)
    partitions = tuple(entry for entry in entries if re.fullmatch(re.escape(name) + r"p\d+", entry))
    holders: list[str] = []
    for below in (folder, *(folder / partition for partition in partitions)):
        _add_holders(context, below, holders)
    standing = {name: folder, **{partition: folder / partition for partition in partitions}}
    standing.update({holder: BLOCK_DEVICES / holder for holder in holders})
    numbers = {_attribute(context, path / "dev") for path in standing.values()} - {""}
    mounts = [point for number, source, point in mounted if number in numbers or source in standing]
    return Disk(
        name=name,
        serial=_attribute(context, folder / "device" / "serial"),
        model=_attribute(context, folder / "device" / "model"),
        partitions=partitions,
        holders=tuple(holders),
        mounts=tuple(mounts),
    )


def _add_holders(context: Context, folder: Path, found: list[str]) -> None:
    """Add what stands on a block device, and what stands on that."""
    for holder in context.system.list_directory(folder / "holders"):
        if holder not in found:
            found.append(holder)
            _add_holders(context, BLOCK_DEVICES / holder, found)


def _mounts(context: Context) -> list[tuple[str, str, str]]:
    """Return device number, name of the source and mount point of each mount.

    The number finds a root that is called /dev/root; the name one whose file system has numbers of its own (btrfs).
    """
    found = []
    for line in (context.system.read(MOUNT_TABLE) or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if len(fields) > 4 and len(rest) > 1:
            found.append((fields[2], Path(rest[1]).name, fields[4]))
    return found


def source_of(context: Context, path: Path) -> tuple[Path, str]:
    """Return the source and the type of the file system that holds a file.

    Raises:
        OSError: There is no such file.
    """
    number = path.stat().st_dev
    wanted = f"{os.major(number)}:{os.minor(number)}"
    for line in (context.system.read(MOUNT_TABLE) or "").splitlines():
        before, _, after = line.partition(" - ")
        if before.split(" ")[2:3] == [wanted]:
            kind, source = after.split(" ")[:2]
            return Path(source), kind
    return Path("unknown"), "unknown"


def _attribute(context: Context, path: Path) -> str:
    return (context.system.read(path) or "").strip()


def contents(context: Context, path: Path) -> str | None:
    """Return in a word what is on a disk that nothing uses; None when it is truly blank.

    Raises:
        StepError: It cannot be read, or something uses it after all.
    """
    try:
        listed = context.system.run(
            ["wipefs", "--no-act", "--noheadings", "--output", "TYPE", str(path)], timeout_seconds=PROBE_SECONDS
        )
    except CommandError as error:
        raise StepError.from_command(
            error, message=f"{path}: cannot be looked at", remedy="see what wipefs says of the disk"
        ) from error
    kinds = sorted(set(listed.split())) or _probed(context, path)
    if kinds:
        return ", ".join(kinds)
    try:
        edges = context.system.read_edges(path, EDGE_BYTES)
    except OSError as error:
        raise StepError(
            f"{path}: cannot be read, so nobody knows whether it is blank ({error})",
            remedy="see what the kernel says of the disk, and what uses it (lsblk)",
        ) from error
    return "data of no known kind" if any(edges) else None


def _probed(context: Context, path: Path) -> list[str]:
    command = ["blkid", "--probe", "--output", "export", str(path)]
    try:
        text = context.system.run(command, timeout_seconds=PROBE_SECONDS)
    except CommandError as error:
        if error.exit_code == NOTHING_FOUND:
            return []
        raise StepError.from_command(
            error, message=f"{path}: cannot be looked at", remedy="see what blkid says of the disk"
        ) from error
    return re.findall(r"^(?:TYPE|PTTYPE)=(.+)$", text, re.MULTILINE) or (["something"] if text.strip() else [])
