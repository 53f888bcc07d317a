"""Volumes and the shared file system: attached, found, formatted only when blank, mounted; on a scripted machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from bootstrap.documents import NodeDocument
from bootstrap.errors import CommandError, StepError
from bootstrap.events import EventLog
from bootstrap.layout import Layout
from bootstrap.plan import Context
from bootstrap.steps.shared_storage import SharedStorage
from bootstrap.steps.volumes import Volumes
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
    """One volume, and what EC2 says when it is attached."""

    def __init__(self, system: Machine, *, snapshot: str = "", attached: bool = False) -> None:
        self.system = system
        self.snapshot = snapshot
        self.attachments = [{"InstanceId": "i-1"}] if attached else []
        self.refusal: str | None = None
        self.more: dict[str, Any] = {}
        self.asked: list[dict[str, Any]] = []
        if attached:
            system.plug_in()

    def describe_volumes(self, **request: Any) -> dict[str, Any]:
        self.asked.append(request)
        found = {"VolumeId": VOLUME, "SnapshotId": self.snapshot, "Attachments": self.attachments, **self.more}
        return {"Volumes": [found]}

    def attach_volume(self, **request: Any) -> None:
        if self.refusal is not None:
            raise ClientError({"Error": {"Code": self.refusal, "Message": "no"}}, "AttachVolume")
        self.attachments = [{"InstanceId": request["InstanceId"]}]
        self.system.plug_in()


class Machine(FakeSystem):
    """A disk that appears a few looks after its attachment, and programs that do as the real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.kind: str | None = None
        self.looks_until_disk: int | None = None
        self.files["/proc/self/mounts"] = "/dev/nvme0n1p1 / xfs rw 0 0\n"
        self.files["/sys/block/nvme0n1/device/serial"] = "vol0aaaaaaaaaaaaaaaa\n"
        self.files["/sys/block/nvme3n1/device/serial"] = "vol0123456789abcdef0  \n"
        self.programs |= {"mkdir": "", "xfs_growfs": "", "lfs": "", "blkid": self._blkid, "wipefs": ""}
        self.programs |= {"mkfs.xfs": self._mkfs, "mount": self._mount, "mount.lustre": ""}

    def plug_in(self) -> None:
        self.looks_until_disk = 2

    def list_directory(self, path: Path) -> list[str]:
        if str(path) != "/sys/block":
            return super().list_directory(path)
        if self.looks_until_disk:
            self.looks_until_disk -= 1
        return ["loop0", "nvme0n1", *(["nvme3n1"] if self.looks_until_disk == 0 else [])]

    def ran(self, program: str) -> list[list[str]]:
        return [command[1:] for command in self.commands if command[0] == program]

    def _blkid(self, command: Sequence[str]) -> str:
        if self.kind is None:
            raise CommandError(command, 2, "", "ended with code 2")
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
    aws: Any = SimpleNamespace(client=lambda name: {"ec2": service}[name])
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
    assert (system.commands, service.asked) == ([], [])


def test_the_template_s_volume_is_found_by_its_serial_and_mounted_read_only(tmp_path: Path) -> None:
    system, service, context = scene(tmp_path, MADE, snapshot="snap-1", attached=True)
    system.kind = "ext4"
    run(context)
    assert {"Name": "attachment.device", "Values": ["/dev/sdf"]} in service.asked[0]["Filters"]
    assert system.ran("mount") == [["-t", "ext4", "-o", "ro", "/dev/nvme3n1", "/mnt/dataset"]]
    assert not system.ran("mkfs.xfs")
    run(context)
    assert len(system.ran("mount")) == 1


@pytest.mark.parametrize(
    ("mode", "answer"), [("provisioned_rate", "VolumeInitializationRate"), ("fast_snapshot_restore", "FastRestored")]
)
def test_that_ebs_loads_the_volume_is_made_sure_of(tmp_path: Path, mode: str, answer: str) -> None:
    system, service, context = scene(tmp_path, {**MADE, "initialization": mode}, snapshot="snap-1", attached=True)
    system.kind = "ext4"
    service.more = {answer: 200}
    run(context)
    assert context.unloaded == set()
    service.more = {}
    run(context)
    assert context.unloaded == {"/mnt/dataset"}
    events = [json.loads(line) for line in context.layout.events.read_text().splitlines()]
    assert [(event["is_on"], bool(event["remedy"])) for event in events] == [(True, False), (False, True)]


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
    ("volume", "snapshot", "kind", "words"),
    [
        (KEPT, "", "", "no file system"),
        (KEPT, "snap-1", None, "is blank, and should hold data"),
        (SHARED, "", None, "is blank, and should hold data"),
    ],
)
def test_what_cannot_be_told_is_not_formatted(
    tmp_path: Path, volume: dict[str, Any], snapshot: str, kind: str | None, words: str
) -> None:
    system, _, context = scene(tmp_path, volume, snapshot=snapshot)
    system.kind = kind
    assert words in failure(context)
    assert not system.ran("mkfs.xfs")


def test_a_disk_that_cannot_be_read_is_not_taken_for_blank(tmp_path: Path) -> None:
    system, _, context = scene(tmp_path, KEPT)
    system.programs["blkid"] = CommandError(["blkid"], 4, "input/output error", "ended with code 4")
    assert "cannot be looked at" in failure(context)
    assert not system.ran("mkfs.xfs")


def test_a_disk_whose_bytes_no_tool_knows_is_not_taken_for_blank(tmp_path: Path) -> None:
    system, _, context = scene(tmp_path, KEPT)
    system.edges["/dev/nvme3n1"] = b"\1" + bytes(100)
    assert "is not blank, it holds data of no known kind" in failure(context)
    assert not system.ran("mkfs.xfs")


@pytest.mark.parametrize(("kind", "options"), [("ext4", "ro,noload"), ("xfs", "ro,norecovery,nouuid")])
def test_a_shared_volume_is_read_without_touching_its_journal(tmp_path: Path, kind: str, options: str) -> None:
    system, _, context = scene(tmp_path, SHARED)
    system.kind = kind
    run(context)
    assert system.ran("mount")[0][3] == options


def test_a_node_of_another_zone_goes_without(tmp_path: Path) -> None:
    system, service, context = scene(tmp_path, KEPT, SHARED, zone="us-east-1b")
    run(context)
    assert (system.commands, service.asked) == ([], [])


def test_the_plan_says_what_other_zones_do(tmp_path: Path) -> None:
    system, service, context = scene(tmp_path, {**KEPT, "restored_elsewhere": True}, SHARED)
    kept, shared = Volumes().intent(context)
    assert "on nodes in us-east-1a" in kept and "on others a copy from its newest snapshot" in kept
    assert "copy" not in shared
    assert (system.commands, service.asked) == ([], [])


def test_a_checkpoint_volume_that_another_machine_has_is_left_to_it(tmp_path: Path) -> None:
    system, service, context = scene(tmp_path, KEPT)
    service.refusal = "VolumeInUse"
    run(context)
    assert not system.ran("mount")
    service.refusal = "UnauthorizedOperation"
    assert "cannot be attached" in failure(context)


def test_a_disk_that_never_appears_is_said(tmp_path: Path) -> None:
    system, service, context = scene(tmp_path, KEPT)
    service.attachments = [{"InstanceId": "i-1"}]
    assert "no disk of it appeared" in failure(context)


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


def test_the_lustre_client_is_installed_where_it_can_be(tmp_path: Path) -> None:
    system, context = lustre_scene(tmp_path)
    del system.programs["mount.lustre"]
    with pytest.raises(StepError, match="no mount.lustre"):
        SharedStorage().act(context)
    system.programs["dnf"] = ""
    SharedStorage().act(context)
    assert system.ran("dnf") == [["install", "--assumeyes", "lustre-client"]]
    assert len(system.ran("mount")) == 1
