"""Instance store disks on a scripted machine; test_local_disks_root.py uses real block devices."""

from __future__ import annotations

import errno
import itertools
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bootstrap.boot_steps.local_disks import IMAGE_SERVICES, MODEL, LocalDisks, plan_disks
from bootstrap.context import Context
from bootstrap.disks.tools import require_program
from bootstrap.documents import NodeDocument
from bootstrap.errors import CommandError, StepError
from bootstrap.events.log import EventLog
from bootstrap.imds import DEFAULT_ENDPOINT, InstanceMetadata
from bootstrap.layout import Layout
from tests.bootstrap.fake_system import FakeSystem
from tests.bootstrap.test_documents import node

EBS = "Amazon Elastic Block Store"


class Machine(FakeSystem):
    """Disks by name. `kinds`: output of wipefs; `xfs` has the node program's label, a RAID member its array."""

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
        raise CommandError(command, 2, "", "exited with code 2")

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


def test_blank_disks_become_one_file_system_for_datasets(tmp_path: Path) -> None:
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


def test_only_blank_instance_store_disks_are_used_in_any_order_of_names(tmp_path: Path) -> None:
    kinds = [(EBS, "vol0root"), (EBS, "vol0data"), (MODEL, "AWS1"), (MODEL, "AWS2")]
    for order in itertools.permutations(kinds):
        names = {f"nvme{number}n1": kind for number, kind in enumerate(order)}
        by_serial = {serial: name for name, (_, serial) in names.items()}
        system, context = scene(tmp_path, names)
        root = system.files[f"/sys/block/{by_serial['vol0root']}/dev"].strip()
        system.files["/proc/self/mountinfo"] = f"20 1 {root} / / rw - xfs /dev/root rw\n"
        assert [disk.serial for disk in plan_disks(context).disks] == ["AWS1", "AWS2"]
        system.kinds[by_serial["AWS2"]] = "ext4"
        with pytest.raises(StepError, match=f"{by_serial['AWS2']} .serial AWS2.: contains ext4: refusing to format it"):
            plan_disks(context)


def test_the_root_disk_is_never_used(tmp_path: Path) -> None:
    system, context = scene(tmp_path, {"nvme0n1": (MODEL, "AWS0"), "nvme1n1": (MODEL, "AWS1")})
    system.files["/sys/block/nvme0n1/nvme0n1p1/dev"] = "259:9"
    system.directories["/sys/block/nvme0n1"].append("nvme0n1p1")
    system.files["/proc/self/mountinfo"] = "20 1 259:9 / / rw - xfs /dev/root rw\n"
    assert [disk.serial for disk in plan_disks(context).disks] == ["AWS1"]


@pytest.mark.parametrize("fault", ["partition", "holder", "bytes", "unreadable", "array of another"])
def test_a_disk_with_data_is_refused(tmp_path: Path, fault: str) -> None:
    system, context = scene(tmp_path, TWO)
    if fault == "partition":
        system.directories["/sys/block/nvme1n1"].append("nvme1n1p1")
    elif fault == "holder":
        system.hold("nvme1n1", "dm-0")
    elif fault == "bytes":
        system.edges["/dev/nvme1n1"] = bytes(100) + b"\1"
    elif fault == "unreadable":
        system.programs["wipefs"] = CommandError(["wipefs"], 1, "Input/output error", "exited with code 1")
    else:
        system.kinds["nvme1n1"], system.array_name = "linux_raid_member", "host:data"
    with pytest.raises(StepError) as caught:
        run(context)
    assert caught.value.remedy
    assert not system.ran("mkfs.xfs") and not [line for line in system.ran("mdadm") if "--create" in line]


def test_the_array_is_assembled_after_a_reboot(tmp_path: Path) -> None:
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


def test_an_array_without_one_of_its_disks_is_created_again(tmp_path: Path) -> None:
    system, context = scene(tmp_path, TWO)
    system.kinds["nvme1n1"] = "linux_raid_member"
    run(context)
    assert "--zero-superblock /dev/nvme1n1" in system.ran("mdadm")
    assert system.ran("mkfs.xfs") == ["-q -f -K -L trainstack /dev/md/trainstack"]


def test_disks_mounted_by_the_image_are_bind_mounted(tmp_path: Path) -> None:
    system, context = scene(tmp_path, TWO)
    for name in ("nvme1n1", "nvme2n1"):
        system.hold(name, "dm-0")
    system.files["/sys/block/dm-0/dev"] = "253:0\n"
    system.mounted("253:0", "/dev/mapper/vg-lv", "/opt/dlami/nvme")
    assert "mounted by the image at /opt/dlami/nvme" in LocalDisks().intent(context)[0]
    assert system.commands == []
    run(context)
    assert system.ran("mount") == [f"--bind /opt/dlami/nvme/trainstack/datasets {tmp_path}/datasets"]
    assert not system.ran("mkfs.xfs")


def test_disks_mounted_by_the_image_during_the_step_are_bind_mounted(tmp_path: Path) -> None:
    system, context = scene(tmp_path, ONE)

    def taken(command: Sequence[str]) -> str:
        system.mounted("259:1", "/dev/nvme1n1", "/opt/dlami/nvme")
        raise CommandError(command, 1, "Device or resource busy", "exited with code 1")

    system.programs["mkfs.xfs"] = taken
    run(context)
    assert system.ran("mount") == [f"--bind /opt/dlami/nvme/trainstack/datasets {tmp_path}/datasets"]


def test_an_emulated_node_does_not_touch_disks(tmp_path: Path) -> None:
    system, context = scene(tmp_path, TWO, AWS_EC2_METADATA_SERVICE_ENDPOINT="http://127.0.0.1:1338")
    run(context)
    assert system.commands == []
    system, context = scene(tmp_path, TWO, AWS_EC2_METADATA_SERVICE_ENDPOINT=DEFAULT_ENDPOINT + "/")
    assert plan_disks(context).action == "create"


def test_missing_tools_are_installed_with_dnf(tmp_path: Path) -> None:
    system, context = scene(tmp_path, TWO)
    del system.programs["mdadm"]
    with pytest.raises(StepError, match="mdadm .package mdadm. is not installed"):
        run(context)
    system.programs["dnf"] = lambda command: system.programs.update(mdadm=system._mdadm) or ""
    run(context)
    assert system.ran("dnf") == ["install --assumeyes --repo=amazonlinux mdadm"]


# A service of the image prepares the disks. AWS's unit is a oneshot with RemainAfterExit, WantedBy=multi-user.target,
# and not ordered before user data. Its script unmounts the disks, runs pvcreate, vgcreate, lvcreate, mkfs and mount,
# and ends with exit code 0 even if one of these fails. Sources (2026-11): the script in
# https://github.com/aws/aws-parallelcluster-cookbook/pull/1013, from which AWS's deep learning images derive theirs,
# and https://github.com/awslabs/awsome-distributed-ai (install_enroot_pyxis.sh waits until the unit is active).


class ImageService:
    """systemctl of an image whose unit combines the disks with LVM and mounts them."""

    def __init__(self, system: Machine, unit: str = "dlami-nvme.service", *, enabled: bool = True) -> None:
        self.system, self.unit, self.enabled, self.works = system, unit, enabled, True
        system.programs["systemctl"] = self.systemctl

    def systemctl(self, command: Sequence[str]) -> str:
        if command[-1] != self.unit or (command[1] == "is-enabled" and not self.enabled):
            raise CommandError(command, 1, "", "exited with code 1")
        if command[1] == "start":
            self.make_volumes()
            if self.works:
                self.mount()
        return ""

    def make_volumes(self) -> None:
        for name in ("nvme1n1", "nvme2n1"):
            self.system.kinds[name] = "LVM2_member"
            self.system.hold(name, "dm-0")
        self.system.files["/sys/block/dm-0/dev"] = "253:0\n"

    def mount(self) -> None:
        self.system.mounted("253:0", "/dev/mapper/vg.01-lv_ephemeral", "/opt/dlami/nvme")


def changed(system: Machine) -> list[str]:
    return [command[0] for command in system.commands if command[0] in ("mkfs.xfs", "dnf") or "--create" in command]


@pytest.mark.parametrize("unit", IMAGE_SERVICES)
def test_a_service_of_the_image_ends_before_the_disks_are_inspected(tmp_path: Path, unit: str) -> None:
    system, context = scene(tmp_path, TWO)
    ImageService(system, unit)
    del system.programs["mdadm"], system.programs["mkfs.xfs"]  # not needed, although there are several disks
    run(context)
    assert system.ran("mount") == [f"--bind /opt/dlami/nvme/trainstack/datasets {tmp_path}/datasets"]
    assert changed(system) == [] and system.slept == 0


def test_a_disabled_service_is_not_started(tmp_path: Path) -> None:
    system, context = scene(tmp_path, TWO)
    ImageService(system, enabled=False)
    run(context)
    assert not [line for line in system.ran("systemctl") if line.startswith("start")]
    assert system.ran("mount") == [f"-t xfs -o noatime /dev/md/trainstack {tmp_path}/datasets"]


@pytest.mark.parametrize("seen", ["physical volume", "logical volume", "file system"])
def test_disks_that_an_unknown_service_is_preparing_are_waited_for(tmp_path: Path, seen: str) -> None:
    system, context = scene(tmp_path, TWO)
    service = ImageService(system, enabled=False)
    if seen == "physical volume":
        system.kinds["nvme1n1"] = "LVM2_member"
    elif seen == "logical volume":
        service.make_volumes()
    else:
        system.kinds["nvme1n1"] = "ext4"
    stages = iter((lambda: None, service.make_volumes, lambda: None, service.mount))
    system.on_sleep = lambda: next(stages)()
    run(context)
    assert system.ran("mount") == [f"--bind /opt/dlami/nvme/trainstack/datasets {tmp_path}/datasets"]
    assert changed(system) == []
    (waiting,) = map(json.loads, context.layout.events.read_text().splitlines())
    assert waiting["event"] == "boot_waiting" and "refusing to format it" in waiting["message"]


def test_a_service_that_does_not_mount_the_disks_is_named(tmp_path: Path) -> None:
    system, context = scene(tmp_path, TWO)
    ImageService(system).works = False
    with pytest.raises(StepError, match="contains dm-0.*after waiting 60 seconds") as caught:
        run(context)
    assert "journalctl --unit dlami-nvme" in caught.value.remedy
    assert changed(system) == [] and 60 <= system.slept < 70


def test_a_disk_in_use_by_a_service_is_waited_for(tmp_path: Path) -> None:
    system, context = scene(tmp_path, ONE)

    def busy(path: Path, count: int) -> bytes:
        if system.slept < 5:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return bytes(count)

    system.read_edges = busy  # type: ignore[method-assign]
    run(context)
    assert system.ran("mkfs.xfs") == ["-q -K -L trainstack /dev/nvme1n1"]


LOCKED = "RPM: error: can't create transaction lock on /var/lib/rpm/.rpm.lock (Resource temporarily unavailable)"


def test_a_package_installation_waits_for_the_lock_of_the_package_database(tmp_path: Path) -> None:
    """The text: https://github.com/masterpointio/terraform-aws-tailscale/pull/44 (Amazon Linux 2023)."""
    system, context = scene(tmp_path, TWO)
    del system.programs["mdadm"]

    def dnf(command: Sequence[str]) -> str:
        if system.slept < 20:
            raise CommandError(command, 1, LOCKED, "exited with code 1")
        system.programs["mdadm"] = system._mdadm
        return ""

    system.programs["dnf"] = dnf
    run(context)
    assert 20 <= system.slept < 30
    assert set(system.ran("dnf")) == {"install --assumeyes --repo=amazonlinux mdadm"}


@pytest.mark.parametrize("output", ["Error: Unable to find a match: mdadm", "Error: Unknown repo: 'amazonlinux'"])
def test_a_package_that_the_repository_does_not_have_is_reported_at_once(tmp_path: Path, output: str) -> None:
    system, context = scene(tmp_path, TWO)
    del system.programs["mdadm"]
    system.programs["dnf"] = CommandError(["dnf"], 1, output, "exited with code 1")
    with pytest.raises(StepError, match="cannot install mdadm") as caught:
        run(context)
    assert caught.value.output_tail == output and system.slept == 0


def test_only_one_step_at_a_time_installs_packages(tmp_path: Path) -> None:
    """dnf and rpm fail if another process holds their locks."""
    system, context = scene(tmp_path, TWO)
    running, overlaps = threading.Lock(), []

    def dnf(command: Sequence[str]) -> str:
        overlaps.append(not running.acquire(blocking=False))
        os.sched_yield()
        system.programs[command[-1]] = ""
        running.release()
        return ""

    system.programs["dnf"] = dnf
    threads = [
        threading.Thread(target=require_program, args=(context, name), kwargs={"package": name})
        for name in ("a", "b", "c", "a")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == [False] * 3
