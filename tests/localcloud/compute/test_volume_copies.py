"""Copies and snapshots of the checkpoint volume: creation, reuse and limits; a denied call only prevents the copy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

from bootstrap.supervise.volume_snapshot import KEPT
from tests.localcloud.compute.conftest import ZONES, Cloud
from tests.localcloud.compute.volume_nodes import DEPLOYMENT, KEY, Deployment, Killed


@pytest.fixture
def deployment(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(cloud, tmp_path_factory.mktemp("nodes"))
    yield made
    for one in made.snapshots():
        made.ec2.delete_snapshot(SnapshotId=one["SnapshotId"])


def test_node_in_another_zone_creates_a_copy_that_is_deleted_with_it(deployment: Deployment) -> None:
    deployment.scheduled_snapshot()
    deployment.age_snapshots()
    newest = deployment.scheduled_snapshot()
    node = deployment.node(1)
    node.boot()
    (copy,) = deployment.copies()
    assert (copy["AvailabilityZone"], copy["SnapshotId"], copy["Encrypted"], copy["KmsKeyId"]) == (
        *(ZONES[1], newest, True, KEY),
    )
    assert (copy["VolumeType"], copy["Size"], copy["Iops"], copy["Throughput"]) == ("gp3", 80, 4000, 300)
    assert copy["VolumeInitializationRate"] == 300
    assert {"Key": "trainstack:snapshots", "Value": DEPLOYMENT} not in copy["Tags"], "the schedule must not snapshot it"
    assert [link["InstanceId"] for link in copy["Attachments"]] == [node.instance_id]
    assert node.is_mounted and not node.system.ran("mkfs.xfs")
    event = node.event()
    assert (event["outcome"], event["volume_id"], event["snapshot_id"]) == ("created", copy["VolumeId"], newest)
    assert event["message"] is None

    again = deployment.node(1, node.instance_id)
    again.boot()
    assert again.event()["outcome"] == "found" and again.is_mounted
    assert len(deployment.copies()) == 1
    deployment.terminate(node)
    assert deployment.copies() == []


def test_node_killed_after_any_call_has_exactly_one_copy(deployment: Deployment) -> None:
    deployment.scheduled_snapshot()
    calls, was_killed = 0, True
    while was_killed:
        calls, was_killed = calls + 1, False
        node = deployment.node(1, calls=calls)
        try:
            node.boot()
        except Killed:
            was_killed = True
        deployment.node(1, node.instance_id).boot()
        (copy,) = deployment.copies()
        (link,) = copy["Attachments"]
        assert link["InstanceId"] == node.instance_id
        deployment.terminate(node)
        assert deployment.copies() == []
    assert calls > 6, "calls: find, describe snapshot and original, create, wait, attach, modify"


def test_lost_answer_creates_no_second_copy(deployment: Deployment) -> None:
    """EC2 might not list a new volume yet."""
    deployment.scheduled_snapshot()
    node = deployment.node(1, calls=4)
    with pytest.raises(Killed):
        node.boot()
    (copy,) = deployment.copies()
    hidden = deployment.node(1, node.instance_id)
    client = hidden.context.aws.client("ec2")
    listed, described = [], client.describe_volumes

    def late(**request: object) -> object:
        listed.append(request)
        return {"Volumes": []} if len(listed) == 1 else described(**request)

    client.describe_volumes = late
    hidden.boot()
    assert [one["VolumeId"] for one in deployment.copies()] == [copy["VolumeId"]]
    assert hidden.is_mounted
    deployment.terminate(hidden)


def test_available_copy_is_reused_and_attached_copy_is_not(deployment: Deployment) -> None:
    deployment.scheduled_snapshot()
    killed = deployment.node(1, calls=4)
    with pytest.raises(Killed):
        killed.boot()
    deployment.terminate(killed)
    (free,) = deployment.copies()
    first, second = deployment.node(1), deployment.node(1)
    first.boot()
    assert (first.event()["outcome"], first.event()["volume_id"]) == ("found", free["VolumeId"])
    second.boot()
    assert second.event()["outcome"] == "none"
    assert "another instance" in second.event()["message"] and "S3" in second.event()["remedy"]
    elsewhere = deployment.node(2)
    elsewhere.boot()
    assert elsewhere.event()["outcome"] == "created"
    deployment.terminate(first, second, elsewhere)
    assert deployment.copies() == []


def test_node_runs_without_a_copy_if_there_is_no_snapshot(deployment: Deployment) -> None:
    node = deployment.node(1)
    node.boot()
    assert node.event()["outcome"] == "none"
    assert f"no completed snapshot of {deployment.volume_id}" in node.event()["message"]
    assert node.event()["remedy"] and deployment.copies() == [] and not node.is_mounted
    deployment.terminate(node)


@pytest.mark.parametrize(
    ("sid", "outcome", "text"),
    [
        ("FindVolumes", "none", "DescribeVolumes"),
        ("FindSnapshots", "none", "DescribeSnapshots"),
        ("ReadSnapshots", "none", "cannot create a volume from snap-"),
        ("CreateCopies", "none", "cannot create a volume from snap-"),
        ("TagOnCreate", "none", "cannot create a volume from snap-"),
        ("UseCopies", "none", "cannot attach"),
        ("AttachToNodes", "none", "cannot attach"),
        ("DeleteCopyOnTermination", "retained", "still be billed"),
    ],
)
def test_denied_call_only_prevents_the_copy(deployment: Deployment, sid: str, outcome: str, text: str) -> None:
    deployment.scheduled_snapshot()
    deployment.grant(without=sid)
    node = deployment.node(1)
    node.boot()
    events = node.events("checkpoint_copy")
    assert events[0]["outcome"] == outcome
    assert text in events[0]["message"] and events[0]["remedy"]
    assert len([event for event in events if event["message"]]) == 1, "exactly one event must describe the problem"
    assert node.is_mounted == (outcome == "retained")
    deployment.terminate(node)
    for copy in deployment.copies():
        deployment.ec2.delete_volume(VolumeId=copy["VolumeId"])


def test_copy_without_a_file_system_is_reported_and_deleted_with_the_instance(deployment: Deployment) -> None:
    deployment.scheduled_snapshot()
    node = deployment.node(1)
    node.system.kind = None
    node.boot()
    assert node.event()["outcome"] == "none" and "is blank, expected data" in node.event()["message"]
    assert not node.system.ran("mkfs.xfs")
    deployment.terminate(node)
    assert deployment.copies() == []


def test_node_cannot_modify_another_node(deployment: Deployment) -> None:
    one, other = deployment.node(1), deployment.node(1)
    with pytest.raises(ClientError, match="ec2:ModifyInstanceAttribute"):
        deployment.client(one.instance_id).modify_instance_attribute(
            InstanceId=other.instance_id, BlockDeviceMappings=[{"DeviceName": "/dev/sdg"}]
        )
    deployment.terminate(one, other)


def test_wait_for_a_new_volume_has_a_limit(deployment: Deployment) -> None:
    deployment.scheduled_snapshot()
    node = deployment.node(1)
    client = node.context.aws.client("ec2")
    described = client.describe_volumes

    def creating(**request: object) -> object:
        answer = described(**request)
        for volume in answer["Volumes"]:
            volume["State"] = "creating"
        return answer

    client.describe_volumes = creating
    node.boot()
    assert node.event()["outcome"] == "none"
    assert "is not available: creating" in node.event()["message"]
    assert node.system.slept == 60
    deployment.terminate(node)
    (copy,) = deployment.copies()
    deployment.ec2.delete_volume(VolumeId=copy["VolumeId"])


def test_leaving_node_takes_a_snapshot_if_needed(deployment: Deployment) -> None:
    scheduled = deployment.scheduled_snapshot()
    home = deployment.node(0)
    home.boot()
    home.save(hours_ago=1)
    event = home.leave()
    assert (event["outcome"], event["snapshot_id"]) == ("not_needed", scheduled)
    deployment.age_snapshots()
    home.save()
    event = home.leave()
    assert (event["outcome"], event["volume_id"], event["message"]) == ("created", deployment.volume_id, None)
    deployment.terminate(home)

    away = deployment.node(1)
    away.boot()
    assert away.event()["snapshot_id"] == event["snapshot_id"], "a restore must also use this snapshot"
    assert away.leave()["outcome"] == "not_needed", "this node has not saved anything"
    taken = []
    for _ in range(KEPT + 1):
        deployment.age_snapshots()
        away.save()
        event = away.leave()
        assert (event["outcome"], event["volume_id"]) == ("created", away.event()["volume_id"])
        taken.append(event["snapshot_id"])
    left = [one["SnapshotId"] for one in deployment.snapshots()]
    assert left == [scheduled, *taken[-KEPT:]], "a node must not delete snapshots of the schedule"
    deployment.terminate(away)
    assert [one["SnapshotId"] for one in deployment.snapshots()] == left


@pytest.mark.parametrize(
    ("sid", "outcome"),
    [
        ("FindSnapshots", "failed"),
        ("SnapshotVolume", "failed"),
        ("TakeSnapshots", "failed"),
        ("TagOnCreate", "failed"),
        ("DeleteOwnSnapshots", "created"),
    ],
)
def test_denied_snapshot_is_a_single_event(deployment: Deployment, sid: str, outcome: str) -> None:
    node = deployment.node(0)
    node.boot()
    for _ in range(KEPT):
        node.save()
        assert node.leave()["outcome"] == "created"
        deployment.age_snapshots()
    deployment.grant(without=sid)
    node.save()
    event = node.leave()
    assert event["outcome"] == outcome
    assert "not authorized" in event["message"] and event["remedy"]
    deployment.terminate(node)
