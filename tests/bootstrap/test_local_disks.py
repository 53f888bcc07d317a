"""The machine's own disks, on a scripted machine; test_local_disks_root.py does the same on real block devices."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bootstrap.documents import NodeDocument
from bootstrap.errors import CommandError, StepError
from bootstrap.events import EventLog
from bootstrap.imds import DEFAULT_ENDPOINT, InstanceMetadata
from bootstrap.layout import Layout
from bootstrap.plan import Context
from bootstrap.steps.local_disks import MODEL, LocalDisks, arrange
from tests.bootstrap.fake_system import FakeSystem
from tests.bootstrap.test_documents import node

EBS = "Amazon Elastic Block Store"


class Machine(FakeSystem):
    """Disks by name: what wipefs says is on each; `xfs` carries our label, a RAID member is of our array."""

    def __init__(self, disks: dict[str, tuple[str, str]], root: str = "nvme0n1", **environment: str) -> None:
        super().__init__(environment)
        self.kinds: dict[str, str] = {}
        self.members, self.label, self.array_name = 2, "trainstack", "any:trainstack"
        self.directories["/sys/block"] = ["loop0", *sorted(disks)]
        for minor, (name, (model, serial)) in enumerate(disks.items()):
            self.directories[f"/sys/block/{name}"] = ["dev", "device", "holders", "queue"]
            self.files[f"/sys/block/{name}/device/model"] = model + "  \n"
            self.files[f"/sys/block/{name}/device/serial"] = serial + "\n"
            self.files[f"/sys/block/{name}/dev"] = f"259:{minor}\n"
        number = self.files.get(f"/sys/block/{root}/dev", "254:0").strip()
        self.files["/proc/self/mountinfo"] = f"20 1 {number} / / rw,noatime shared:1 - xfs /dev/root rw\n"
        self.files["/proc/self/mounts"] = "/dev/root / xfs rw 0 0\n"
        self.programs |= {"wipefs": self._wipefs, "blkid": self._blkid, "mdadm": self._mdadm, "mkdir": ""}
        self.programs |= {"mkfs.xfs": "", "mount": self._mount}

    def hold(self, name: str, holder: str) -> None:
        self.directories[f"/sys/block/{name}/holders"] = [holder]
        self.files[f"/sys/block/{holder}/dev"] = "9:127\n"

    def mounted(self, number: str, source: str, point: str) -> None:
        self.files["/proc/self/mountinfo"] += f"30 20 {number} / {point} rw - xfs {source} rw\n"

    def ran(self, program: str) -> list[str]:
        return [" ".join(command[1:]) for command in self.commands if command[0] == program]

    def _wipefs(self, command: Sequence[str]) -> str:
        return self.kinds.get(Path(command[-1]).name, "")

    def _blkid(self, command: Sequence[str]) -> str:
        if "LABEL" in command:
            return self.label + "\n"
        raise CommandError(command, 2, "", "ended with code 2")

    def _mdadm(self, command: Sequence[str]) -> str:
        return f"MD_LEVEL=raid0\nMD_DEVICES={self.members}\nMD_NAME={self.array_name}\nMD_UUID=1:2:3:4\n"

    def _mount(self, command: Sequence[str]) -> str:
        self.files["/proc/self/mounts"] += f"{command[-2]} {command[-1]} xfs rw 0 0\n"
        return ""


def scene(root: Path, disks: dict[str, tuple[str, str]], **environment: str) -> tuple[Machine, Context]:
    system, layout = Machine(disks, **environment), Layout(root)
    document = NodeDocument.from_json(node())
    unused: Any = None
    return system, Context(system, layout, document, unused, InstanceMetadata(system), EventLog(system, layout.events))


def run(context: Context) -> None:
    LocalDisks().act(context)
    LocalDisks().verify(context)


TWO = {"nvme0n1": (EBS, "vol0a"), "nvme1n1": (MODEL, "AWS2"), "nvme2n1": (MODEL, "AWS1")}
ONE = {"nvme0n1": (EBS, "vol0a"), "nvme1n1": (MODEL, "AWS1")}


def test_blank_disks_become_one_file_system_under_the_datasets(tmp_path: Path) -> None:
    system, context = scene(tmp_path, TWO)
    run(context)
    create = [line for line in system.ran("mdadm") if line.startswith("--create")]
    assert [line.split()[-2:] for line in create] == [["/dev/nvme2n1", "/dev/nvme1n1"]]  # by serial
    assert system.ran("mkfs.xfs") == ["-q -f -K -L trainstack /dev/md/trainstack"]
    assert system.ran("mount") == [f"-t xfs -o noatime /dev/md/trainstack {tmp_path}/datasets"]
    done = len(system.commands)
    run(context)
    assert not [line for line in system.commands[done:] if line[0] in ("mkfs.xfs", "mount", "mkdir")]


def test_one_disk_needs_no_array(tmp_path: Path) -> None:
    system, context = scene(tmp_path, ONE)
    run(context)
    assert (system.ran("mdadm"), system.ran("mkfs.xfs")) == ([], ["-q -K -L trainstack /dev/nvme1n1"])


def test_in_every_order_of_names_only_blank_disks_of_the_machine_are_taken(tmp_path: Path) -> None:
    kinds = [(EBS, "vol0root"), (EBS, "vol0data"), (MODEL, "AWS1"), (MODEL, "AWS2")]
    for order in itertools.permutations(kinds):
        names = {f"nvme{number}n1": kind for number, kind in enumerate(order)}
        by_serial = {serial: name for name, (_, serial) in names.items()}
        system, context = scene(tmp_path, names)
        root = system.files[f"/sys/block/{by_serial['vol0root']}/dev"].strip()
        system.files["/proc/self/mountinfo"] = f"20 1 {root} / / rw - xfs /dev/root rw\n"
        assert [disk.serial for disk in arrange(context).disks] == ["AWS1", "AWS2"]
        system.kinds[by_serial["AWS2"]] = "ext4"
        with pytest.raises(StepError, match=f"{by_serial['AWS2']} .serial AWS2.: holds ext4: is never formatted"):
            arrange(context)


def test_the_disk_that_the_system_runs_from_is_never_taken(tmp_path: Path) -> None:
    system, context = scene(tmp_path, {"nvme0n1": (MODEL, "AWS0"), "nvme1n1": (MODEL, "AWS1")})
    system.files["/sys/block/nvme0n1/nvme0n1p1/dev"] = "259:9"
    system.directories["/sys/block/nvme0n1"].append("nvme0n1p1")
    system.files["/proc/self/mountinfo"] = "20 1 259:9 / / rw - xfs /dev/root rw\n"
    assert [disk.serial for disk in arrange(context).disks] == ["AWS1"]


@pytest.mark.parametrize("fault", ["partition", "holder", "bytes", "unreadable", "array of another"])
def test_a_disk_with_anything_on_it_is_refused(tmp_path: Path, fault: str) -> None:
    system, context = scene(tmp_path, TWO)
    if fault == "partition":
        system.directories["/sys/block/nvme1n1"].append("nvme1n1p1")
    elif fault == "holder":
        system.hold("nvme1n1", "dm-0")
    elif fault == "bytes":
        system.edges["/dev/nvme1n1"] = bytes(100) + b"\1"
    elif fault == "unreadable":
        system.programs["wipefs"] = CommandError(["wipefs"], 1, "Input/output error", "ended with code 1")
    else:
        system.kinds["nvme1n1"], system.array_name = "linux_raid_member", "host:data"
    with pytest.raises(StepError) as caught:
        run(context)
    assert caught.value.remedy
    assert not system.ran("mkfs.xfs") and not [line for line in system.ran("mdadm") if "--create" in line]


def test_an_array_of_ours_is_assembled_after_a_reboot(tmp_path: Path) -> None:
    system, context = scene(tmp_path, TWO)
    system.kinds = dict.fromkeys(("nvme1n1", "nvme2n1"), "linux_raid_member")
    run(context)
    assert "--assemble --run /dev/md/trainstack /dev/nvme2n1 /dev/nvme1n1" in system.ran("mdadm")
    assert not system.ran("mkfs.xfs") and system.ran("mount")


def test_an_array_that_the_system_assembled_is_mounted(tmp_path: Path) -> None:
    system, context = scene(tmp_path, TWO)
    system.hold("nvme1n1", "md127")
    system.hold("nvme2n1", "md127")
    run(context)
    assert system.ran("mount") == [f"-t xfs -o noatime /dev/md127 {tmp_path}/datasets"]
    assert not system.ran("mkfs.xfs")


def test_an_array_of_ours_that_lacks_a_disk_is_made_anew(tmp_path: Path) -> None:
    system, context = scene(tmp_path, TWO)
    system.kinds["nvme1n1"] = "linux_raid_member"
    run(context)
    assert "--zero-superblock /dev/nvme1n1" in system.ran("mdadm")
    assert system.ran("mkfs.xfs") == ["-q -f -K -L trainstack /dev/md/trainstack"]


def test_disks_that_the_image_mounted_are_used_there(tmp_path: Path) -> None:
    system, context = scene(tmp_path, TWO)
    for name in ("nvme1n1", "nvme2n1"):
        system.hold(name, "dm-0")
    system.files["/sys/block/dm-0/dev"] = "253:0\n"
    system.mounted("253:0", "/dev/mapper/vg-lv", "/opt/dlami/nvme")
    assert "the image mounted them at /opt/dlami/nvme" in LocalDisks().intent(context)[0]
    assert system.commands == []
    run(context)
    assert system.ran("mount") == [f"--bind /opt/dlami/nvme/trainstack/datasets {tmp_path}/datasets"]
    assert not system.ran("mkfs.xfs")


def test_disks_that_the_image_takes_meanwhile_are_left_to_it(tmp_path: Path) -> None:
    system, context = scene(tmp_path, ONE)

    def taken(command: Sequence[str]) -> str:
        system.mounted("259:1", "/dev/nvme1n1", "/opt/dlami/nvme")
        raise CommandError(command, 1, "Device or resource busy", "ended with code 1")

    system.programs["mkfs.xfs"] = taken
    run(context)
    assert system.ran("mount") == [f"--bind /opt/dlami/nvme/trainstack/datasets {tmp_path}/datasets"]


def test_an_emulated_cloud_s_node_does_not_touch_the_computer_s_disks(tmp_path: Path) -> None:
    system, context = scene(tmp_path, TWO, AWS_EC2_METADATA_SERVICE_ENDPOINT="http://127.0.0.1:1338")
    run(context)
    assert system.commands == []
    system, context = scene(tmp_path, TWO, AWS_EC2_METADATA_SERVICE_ENDPOINT=DEFAULT_ENDPOINT + "/")
    assert arrange(context).action == "make"


def test_the_tools_are_installed_where_they_can_be(tmp_path: Path) -> None:
    system, context = scene(tmp_path, TWO)
    del system.programs["mdadm"]
    with pytest.raises(StepError, match="has no mdadm"):
        run(context)
    system.programs["dnf"] = lambda command: system.programs.update(mdadm=system._mdadm) or ""
    run(context)
    assert system.ran("dnf") == ["install --assumeyes mdadm"]
