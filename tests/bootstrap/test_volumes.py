"""The volumes and shared_storage steps on a scripted machine: attach, identify, format if blank, mount."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from bootstrap.boot_steps.shared_storage import SharedStorage
from bootstrap.boot_steps.volumes import Volumes
from bootstrap.context import Context
from bootstrap.documents import NodeDocument
from bootstrap.errors import CommandError, StepError
from bootstrap.events.log import EventLog
from bootstrap.layout import Layout
from tests.bootstrap.fake_system import FakeSystem
from tests.bootstrap.test_documents import node

VOLUME = "vol-0123456789abcdef0"
MADE = {"kind": "dataset", "device": "/dev/sdf", "mount": "/mnt/dataset", "read_only": True, "warm": False}
KEPT = {
    "kind": "checkpoint",
    "device": "/dev/sdg",
    "mount": "/mnt/checkpoints",
    "read_only": False,
    "warm": False,
    "volume_id": VOLUME,
    "availability_zone": "us-east-1a",
}
SHARED = {**KEPT, "kind": "shared", "device": "/dev/sdh", "mount": "/mnt/shared", "read_only": True}
LUSTRE = {
    "dns_name": "fs-1.example",
    "mount_name": "abc",
    "mount": "/mnt/lustre",
    "options": "relatime,flock",
    "stripe_count": -1,
}


class Ec2:
    """A simulated EC2 with one volume."""

    def __init__(self, system: Machine, *, snapshot: str = "", attached: bool = False) -> None:
        self.system = system
        self.snapshot = snapshot
        self.attachments = [{"InstanceId": "i-1"}] if attached else []
        self.refusal: str | None = None
        self.more: dict[str, Any] = {}
        self.requests: list[dict[str, Any]] = []
        if attached:
            system.plug_in()

    def describe_volumes(self, **request: Any) -> dict[str, Any]:
        self.requests.append(request)
        found = {"VolumeId": VOLUME, "SnapshotId": self.snapshot, "Attachments": self.attachments, **self.more}
        return {"Volumes": [found]}

    def attach_volume(self, **request: Any) -> None:
        if self.refusal is not None:
            raise ClientError({"Error": {"Code": self.refusal, "Message": "no"}}, "AttachVolume")
        self.attachments = [{"InstanceId": request["InstanceId"]}]
        self.system.plug_in()


class Machine(FakeSystem):
    """A disk that appears only some listings after its attachment, and simulated programs."""

    def __init__(self) -> None:
        super().__init__()
        self.kind: str | None = None
        self.listings_until_disk: int | None = None
        self.files["/proc/self/mounts"] = "/dev/nvme0n1p1 / xfs rw 0 0\n"
        self.files["/sys/block/nvme0n1/device/serial"] = "vol0aaaaaaaaaaaaaaaa\n"
        self.files["/sys/block/nvme3n1/device/serial"] = "vol0123456789abcdef0  \n"
        self.programs |= {"mkdir": "", "xfs_growfs": "", "lfs": "", "blkid": self._blkid, "wipefs": ""}
        self.programs |= {"mkfs.xfs": self._mkfs, "mount": self._mount, "mount.lustre": ""}

    def plug_in(self) -> None:
        self.listings_until_disk = 2

    def list_directory(self, path: Path) -> list[str]:
        if str(path) != "/sys/block":
            return super().list_directory(path)
        if self.listings_until_disk:
            self.listings_until_disk -= 1
        return ["loop0", "nvme0n1", *(["nvme3n1"] if self.listings_until_disk == 0 else [])]

    def ran(self, program: str) -> list[list[str]]:
        return [command[1:] for command in self.commands if command[0] == program]

    def _blkid(self, command: Sequence[str]) -> str:
        if self.kind is None:
            raise CommandError(command, 2, "", "exited with code 2")
        return self.kind + "\n"

    def _mkfs(self, command: Sequence[str]) -> str:
        self.kind = "xfs"
        return ""

    def _mount(self, command: Sequence[str]) -> str:
        source, target = command[-2:]
        self.files["/proc/self/mounts"] += f"{source} {target} {command[2]} rw 0 0\n"
        return ""


def scene(root: Path, *volumes: dict[str, Any], zone: str = "us-east-1a", **ec2: Any) -> tuple[Machine, Ec2, Context]:
    system = Machine()
    service, layout = Ec2(system, **ec2), Layout(root)
    document = NodeDocument.from_json({**node(), "volumes": list(volumes)})
    aws: Any = SimpleNamespace(client=lambda name, patience="normal": {"ec2": service}[name])
    unused: Any = None
    context = Context(system, layout, document, aws, unused, EventLog(system, layout.events))
    identity: Any = SimpleNamespace(instance_id="i-1", availability_zone=zone)
    context.identity = identity
    return system, service, context


def run(context: Context) -> None:
    Volumes().act(context)
    Volumes().verify(context)


def failure(context: Context) -> str:
    with pytest.raises(StepError) as caught:
        run(context)
    assert caught.value.remedy
    return caught.value.message


def test_a_node_without_volumes_calls_nothing(tmp_path: Path) -> None:
    system, service, context = scene(tmp_path)
    run(context)
    SharedStorage().act(context)
    SharedStorage().verify(context)
    assert (system.commands, service.requests) == ([], [])


def test_the_launch_template_volume_is_found_by_its_serial_and_mounted_read_only(tmp_path: Path) -> None:
    system, service, context = scene(tmp_path, MADE, snapshot="snap-1", attached=True)
    system.kind = "ext4"
    run(context)
    assert {"Name": "attachment.device", "Values": ["/dev/sdf"]} in service.requests[0]["Filters"]
    assert system.ran("mount") == [["-t", "ext4", "-o", "ro", "/dev/nvme3n1", "/mnt/dataset"]]
    assert not system.ran("mkfs.xfs")
    run(context)
    assert len(system.ran("mount")) == 1


@pytest.mark.parametrize(
    ("mode", "answer"), [("provisioned_rate", "VolumeInitializationRate"), ("fast_snapshot_restore", "FastRestored")]
)
def test_the_initialization_by_ebs_is_checked(tmp_path: Path, mode: str, answer: str) -> None:
    system, service, context = scene(tmp_path, {**MADE, "initialization": mode}, snapshot="snap-1", attached=True)
    system.kind = "ext4"
    service.more = {answer: 200}
    run(context)
    assert context.uninitialized_mounts == set()
    service.more = {}
    run(context)
    assert context.uninitialized_mounts == {"/mnt/dataset"}
    events = [json.loads(line) for line in context.layout.events.read_text().splitlines()]
    assert [(event["enabled"], bool(event["remedy"])) for event in events] == [(True, False), (False, True)]


def test_a_blank_checkpoint_volume_is_attached_formatted_and_mounted(tmp_path: Path) -> None:
    system, _, context = scene(tmp_path, KEPT)
    run(context)
    assert system.ran("mkfs.xfs") == [["-q", "/dev/nvme3n1"]]
    assert system.ran("mount") == [["-t", "xfs", "-o", "noatime", "/dev/nvme3n1", "/mnt/checkpoints"]]
    assert system.ran("xfs_growfs") == [["/mnt/checkpoints"]]


def test_a_volume_with_data_is_never_formatted(tmp_path: Path) -> None:
    system, _, context = scene(tmp_path, KEPT)
    system.kind = "xfs"
    run(context)
    assert not system.ran("mkfs.xfs")
    assert len(system.ran("mount")) == 1


@pytest.mark.parametrize(
    ("volume", "snapshot", "kind", "expected"),
    [
        (KEPT, "", "", "no file system"),
        (KEPT, "snap-1", None, "is blank, expected data"),
        (SHARED, "", None, "is blank, expected data"),
    ],
)
def test_a_volume_without_a_known_state_is_not_formatted(
    tmp_path: Path, volume: dict[str, Any], snapshot: str, kind: str | None, expected: str
) -> None:
    system, _, context = scene(tmp_path, volume, snapshot=snapshot)
    system.kind = kind
    assert expected in failure(context)
    assert not system.ran("mkfs.xfs")


def test_an_unreadable_disk_is_not_blank(tmp_path: Path) -> None:
    system, _, context = scene(tmp_path, KEPT)
    system.programs["blkid"] = CommandError(["blkid"], 4, "input/output error", "exited with code 4")
    assert "cannot inspect the disk" in failure(context)
    assert not system.ran("mkfs.xfs")


def test_a_disk_with_unknown_data_is_not_blank(tmp_path: Path) -> None:
    system, _, context = scene(tmp_path, KEPT)
    system.edges["/dev/nvme3n1"] = b"\1" + bytes(100)
    assert "is not blank (found data of an unknown type)" in failure(context)
    assert not system.ran("mkfs.xfs")


@pytest.mark.parametrize(("kind", "options"), [("ext4", "ro,noload"), ("xfs", "ro,norecovery,nouuid")])
def test_a_shared_volume_is_mounted_without_a_journal_replay(tmp_path: Path, kind: str, options: str) -> None:
    system, _, context = scene(tmp_path, SHARED)
    system.kind = kind
    run(context)
    assert system.ran("mount")[0][3] == options


def test_a_node_in_another_zone_runs_without_the_volumes(tmp_path: Path) -> None:
    system, service, context = scene(tmp_path, KEPT, SHARED, zone="us-east-1b")
    run(context)
    assert (system.commands, service.requests) == ([], [])


def test_the_plan_describes_copies_in_other_zones(tmp_path: Path) -> None:
    system, service, context = scene(tmp_path, {**KEPT, "restored_elsewhere": True}, SHARED)
    kept, shared = Volumes().intent(context)
    assert "on nodes in us-east-1a" in kept and "in other zones, a copy from its newest snapshot" in kept
    assert "copy" not in shared
    assert (system.commands, service.requests) == ([], [])


def test_a_checkpoint_volume_of_another_instance_is_not_mounted(tmp_path: Path) -> None:
    system, service, context = scene(tmp_path, KEPT)
    service.refusal = "VolumeInUse"
    run(context)
    assert not system.ran("mount")
    service.refusal = "UnauthorizedOperation"
    assert "cannot attach" in failure(context)


def test_a_disk_that_never_appears_is_reported(tmp_path: Path) -> None:
    system, service, context = scene(tmp_path, KEPT)
    service.attachments = [{"InstanceId": "i-1"}]
    assert "its disk did not appear" in failure(context)


def lustre_scene(root: Path) -> tuple[Machine, Context]:
    system, _, context = scene(root)
    context.node = NodeDocument.from_json({**node(), "lustre": LUSTRE})
    return system, context


def test_lustre_is_mounted_with_its_options_and_striped(tmp_path: Path) -> None:
    system, context = lustre_scene(tmp_path)
    for _ in range(2):
        SharedStorage().act(context)
        SharedStorage().verify(context)
    expected = ["-t", "lustre", "-o", "relatime,flock", "fs-1.example@tcp:/abc", "/mnt/lustre"]
    assert system.ran("mount") == [expected]
    assert system.ran("lfs")[0] == ["setstripe", "--stripe-count", "-1", "/mnt/lustre"]


def test_the_lustre_client_is_installed_with_dnf(tmp_path: Path) -> None:
    system, context = lustre_scene(tmp_path)
    del system.programs["mount.lustre"]
    with pytest.raises(StepError, match="mount.lustre .* is not installed.*only on Amazon Linux") as caught:
        SharedStorage().act(context)
    assert "LustreGuide/install-lustre-client.html" in caught.value.remedy
    system.programs["dnf"] = ""
    SharedStorage().act(context)
    assert system.ran("dnf") == [["install", "--assumeyes", "--repo=amazonlinux", "lustre-client"]]
    assert len(system.ran("mount")) == 1
