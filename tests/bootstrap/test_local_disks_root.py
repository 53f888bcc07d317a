"""Instance store disks on real block devices: loop devices that pose as NVMe disks, mdadm and xfs.

If the kernel of this machine has no md arrays, the tests run in a user-mode Linux kernel.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bootstrap.boot_steps.local_disks import MODEL, LocalDisks, plan_disks
from bootstrap.context import Context
from bootstrap.documents import NodeDocument
from bootstrap.errors import StepError
from bootstrap.events.log import EventLog
from bootstrap.imds import InstanceMetadata
from bootstrap.layout import Layout
from bootstrap.system import System
from tests.bootstrap import user_mode_linux
from tests.bootstrap.test_documents import node

pytestmark = pytest.mark.root

EBS = "Amazon Elastic Block Store"
DISK_BYTES = 320 * 1024**2  # mkfs.xfs needs 300 MB
HAS_ARRAYS = Path("/proc/mdstat").exists()
TOOLS = ("losetup", "mdadm", "mkfs.xfs", "mkfs.ext4", "wipefs", "blkid", "pvcreate")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]


class Machine(System):
    """Loop devices with the names, models and serial numbers of NVMe disks."""

    def __init__(self) -> None:
        super().__init__()
        self.loops: dict[str, tuple[str, str, str]] = {}  # name: loop device, model, serial
        self.root = ""
        self.commands: list[list[str]] = []

    def environment(self) -> Mapping[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}

    def run(
        self, command: Sequence[str], *, timeout_seconds: float, environment: Mapping[str, str] | None = None
    ) -> str:
        self.commands.append(list(command))
        real = [str(self._real(Path(word))) if word.startswith("/dev/nvme") else word for word in command]
        return super().run(real, timeout_seconds=timeout_seconds, environment=environment)

    def list_directory(self, path: Path) -> list[str]:
        return sorted(self.loops) if str(path) == "/sys/block" else super().list_directory(self._real(path))

    def read(self, path: Path) -> str | None:
        parts = path.parts
        if len(parts) == 6 and parts[3] in self.loops and parts[4] == "device":
            return self.loops[parts[3]][1 if parts[5] == "model" else 2] + "\n"
        if str(path) == "/proc/self/mountinfo" and self.root:
            number = super().read(Path("/sys/block") / self.loops[self.root][0] / "dev") or ""
            return f"1 0 {number.strip()} / / rw - xfs /dev/root rw\n{super().read(path)}"
        return super().read(self._real(path))

    def read_edges(self, path: Path, count: int) -> bytes:
        return super().read_edges(self._real(path), count)

    def _real(self, path: Path) -> Path:
        parts = [self.loops[part][0] if part in self.loops else part for part in path.parts]
        return Path(*parts)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr("bootstrap.boot_steps.local_disks.SETTLING_SECONDS", 0.0)
    system = Machine()
    made: list[str] = []

    def plug_in(kinds: list[tuple[str, str]]) -> None:
        for number, (model, serial) in enumerate(kinds):
            image = tmp_path / f"{serial}.img"
            if not image.exists():
                image.touch()
                os.truncate(image, DISK_BYTES)
                made.append(tool("losetup", "--find", "--show", str(image)))
            loop = tool("losetup", "--noheadings", "--output", "NAME", "--associated", str(image))
            system.loops[f"nvme{number}n1"] = (Path(loop).name, model, serial)

    system.plug_in = plug_in  # type: ignore[attr-defined]
    yield system
    stop(tmp_path)
    for loop in made:
        tool("losetup", "--detach", loop)


def tool(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def stop(root: Path) -> None:
    """Unmount and stop arrays, as a reboot does."""
    if os.path.ismount(root / "datasets"):
        tool("umount", str(root / "datasets"))
    if HAS_ARRAYS:
        tool("mdadm", "--stop", "--scan")


def context_of(system: Machine, root: Path) -> Context:
    layout, unused = Layout(root), None
    document = NodeDocument.from_json(node())
    aws: Any = unused
    return Context(system, layout, document, aws, InstanceMetadata(system), EventLog(system, layout.events))


def boot(context: Context) -> None:
    LocalDisks().act(context)
    LocalDisks().verify(context)


TWO = [(EBS, "vol0root"), (MODEL, "AWS1"), (MODEL, "AWS2")]


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.skipif(not HAS_ARRAYS, reason="the kernel has no md arrays; see the last test")
class TestArrays:
    def test_blank_disks_to_an_array_and_back_after_a_reboot(self, machine: Machine, tmp_path: Path) -> None:
        machine.plug_in(TWO)  # type: ignore[attr-defined]
        context = context_of(machine, tmp_path)
        boot(context)
        datasets = tmp_path / "datasets"
        assert os.path.ismount(datasets) and os.statvfs(datasets).f_blocks * 4096 > 1.5 * DISK_BYTES
        (datasets / "kept").write_text("data")
        done = len(machine.commands)
        boot(context)  # a second run changes nothing
        assert not [line for line in machine.commands[done:] if line[0] in ("mkfs.xfs", "mount", "mkdir")]
        stop(tmp_path)
        assert not (datasets / "kept").exists()
        assert plan_disks(context).action == "assemble"
        boot(context)
        assert (datasets / "kept").read_text() == "data"

    def test_a_lost_disk_leads_to_a_new_array(self, machine: Machine, tmp_path: Path) -> None:
        machine.plug_in(TWO)  # type: ignore[attr-defined]
        context = context_of(machine, tmp_path)
        boot(context)
        (tmp_path / "datasets" / "lost").write_text("data")
        stop(tmp_path)
        machine.plug_in([TWO[0], TWO[1], (MODEL, "AWS3")])  # type: ignore[attr-defined]
        assert plan_disks(context).action == "rebuild"
        boot(context)
        assert list((tmp_path / "datasets").iterdir()) == []

    def test_only_blank_disks_are_changed_in_any_order_of_names(self, machine: Machine, tmp_path: Path) -> None:
        kinds = [(EBS, "vol0root"), (EBS, "vol0data"), (MODEL, "AWS1"), (MODEL, "AWS2")]
        machine.plug_in(kinds)  # type: ignore[attr-defined]
        data = Path("/dev") / machine.loops["nvme1n1"][0]
        tool("mkfs.ext4", "-q", str(data))
        before = data.read_bytes()
        for order in itertools.permutations(kinds):
            context = self.numbered(machine, tmp_path, order)
            assert [disk.serial for disk in plan_disks(context).disks] == ["AWS1", "AWS2"]
        for first in range(len(kinds)):  # each disk under each name once
            boot(self.numbered(machine, tmp_path, (*kinds[first:], *kinds[:first])))
            assert os.path.ismount(tmp_path / "datasets")
            stop(tmp_path)
            for loop, model, _ in machine.loops.values():
                if model == MODEL:
                    tool("blkdiscard", "--force", f"/dev/{loop}")
        assert data.read_bytes() == before

    @staticmethod
    def numbered(machine: Machine, tmp_path: Path, order: Sequence[tuple[str, str]]) -> Context:
        machine.plug_in(list(order))  # type: ignore[attr-defined]
        machine.root = next(name for name, (_, _, serial) in machine.loops.items() if serial == "vol0root")
        return context_of(machine, tmp_path)


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
class TestOneDisk:
    def test_one_disk_and_its_second_boot(self, machine: Machine, tmp_path: Path) -> None:
        machine.plug_in(TWO[:2])  # type: ignore[attr-defined]
        context = context_of(machine, tmp_path)
        boot(context)
        (tmp_path / "datasets" / "kept").write_text("data")
        boot(context)
        tool("umount", str(tmp_path / "datasets"))
        boot(context)
        assert (tmp_path / "datasets" / "kept").read_text() == "data"

    @pytest.mark.parametrize("first", ["file system", "physical volume"])
    def test_a_disk_that_the_image_mounts_during_the_step_is_used_there(
        self, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
    ) -> None:
        machine.plug_in(TWO[:2])  # type: ignore[attr-defined]
        disk, point = f"/dev/{machine.loops['nvme1n1'][0]}", tmp_path / "nvme"
        point.mkdir()
        if first == "physical volume":
            tool("pvcreate", "--yes", disk)
        else:
            tool("mkfs.ext4", "-q", disk)
        looked: list[float] = []

        def sleep(seconds: float) -> None:
            """Continue to prepare the disk between two inspections, as a service in the image does."""
            looked.append(seconds)
            if len(looked) == 2 and first == "physical volume":
                tool("wipefs", "--all", disk)
                tool("mkfs.ext4", "-q", disk)
            if len(looked) == 3:
                tool("mount", disk, str(point))

        monkeypatch.setattr("bootstrap.boot_steps.local_disks.SETTLING_SECONDS", 60.0)
        monkeypatch.setattr(machine, "sleep", sleep)
        try:
            boot(context_of(machine, tmp_path))
            assert (point / "trainstack" / "datasets").samefile(tmp_path / "datasets")
            assert not [line for line in machine.commands if line[0] == "mkfs.xfs"]
        finally:
            stop(tmp_path)
            tool("umount", str(point))

    @pytest.mark.parametrize("content", ["ext4", "xfs", "end", "start", "root", "partitions"])
    def test_a_disk_with_data_is_refused_and_unchanged(self, machine: Machine, tmp_path: Path, content: str) -> None:
        machine.plug_in(TWO[:2])  # type: ignore[attr-defined]
        disk = Path("/dev") / machine.loops["nvme1n1"][0]
        if content in ("ext4", "xfs"):
            tool(f"mkfs.{content}", "-q", str(disk))
        elif content in ("start", "end"):
            with disk.open("r+b") as stream:
                stream.seek(512 * 100 if content == "start" else DISK_BYTES - 1)
                stream.write(b"\1")
        elif content == "partitions":
            entry = bytes([0, 0, 2, 0, 0x83, 0, 0, 0]) + (2048).to_bytes(4, "little") + (4096).to_bytes(4, "little")
            with disk.open("r+b") as stream:
                stream.seek(446)
                stream.write(entry + bytes(48) + b"\x55\xaa")
        else:
            machine.root = "nvme1n1"
        before = disk.read_bytes()
        context = context_of(machine, tmp_path)
        if content == "root":
            boot(context)
        else:
            with pytest.raises(StepError, match="refusing to format it"):
                boot(context)
        assert disk.read_bytes() == before and not os.path.ismount(tmp_path / "datasets")


@pytest.mark.skipif(HAS_ARRAYS, reason="the other tests ran on this kernel")
@pytest.mark.skipif(not user_mode_linux.is_installed(), reason="not installed: user-mode-linux")
def test_the_same_in_a_kernel_with_arrays(tmp_path: Path) -> None:
    exit_code, output = user_mode_linux.run_tests(tmp_path, "-m", "root", f"{Path(__file__)}::TestArrays")
    assert exit_code == 0, output
    assert "3 passed" in output, output
