"""Copies and snapshots of the checkpoint volume: made, found again, bounded; what is refused costs the copy alone."""

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


def test_a_node_of_another_zone_makes_a_copy_that_goes_with_it(deployment: Deployment) -> None:
    deployment.scheduled_snapshot()
    deployment.an_hour_passes()
    newest = deployment.scheduled_snapshot()
    node = deployment.node(1)
    node.boot()
    (copy,) = deployment.copies()
    assert (copy["AvailabilityZone"], copy["SnapshotId"], copy["Encrypted"], copy["KmsKeyId"]) == (
        *(ZONES[1], newest, True, KEY),
    )
    assert (copy["VolumeType"], copy["Size"], copy["Iops"], copy["Throughput"]) == ("gp3", 80, 4000, 300)
    assert copy["VolumeInitializationRate"] == 300
    assert {"Key": "trainstack:snapshots", "Value": DEPLOYMENT} not in copy["Tags"], "the schedule may not snapshot it"
    assert [link["InstanceId"] for link in copy["Attachments"]] == [node.instance_id]
    assert node.is_mounted and not node.system.ran("mkfs.xfs")
    event = node.event()
    assert (event["outcome"], event["volume_id"], event["snapshot_id"]) == ("made", copy["VolumeId"], newest)
    assert event["message"] is None

    again = deployment.node(1, node.instance_id)
    again.boot()
    assert again.event()["outcome"] == "found" and again.is_mounted
    assert len(deployment.copies()) == 1
    deployment.terminate(node)
    assert deployment.copies() == []


def test_a_node_that_is_killed_after_any_call_ends_up_with_one_copy(deployment: Deployment) -> None:
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
    assert calls > 6, "finds, asks for the snapshot and the original, makes, waits, attaches, lets it go"


def test_an_answer_that_was_lost_makes_no_second_copy(deployment: Deployment) -> None:
    """EC2 may not list yet what it has just made."""
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


def test_a_free_copy_is_taken_and_one_in_use_is_left(deployment: Deployment) -> None:
    deployment.scheduled_snapshot()
    gone = deployment.node(1, calls=4)
    with pytest.raises(Killed):
        gone.boot()
    deployment.terminate(gone)
    (free,) = deployment.copies()
    first, second = deployment.node(1), deployment.node(1)
    first.boot()
    assert (first.event()["outcome"], first.event()["volume_id"]) == ("found", free["VolumeId"])
    second.boot()
    assert second.event()["outcome"] == "without"
    assert "another machine" in second.event()["message"] and "S3" in second.event()["remedy"]
    elsewhere = deployment.node(2)
    elsewhere.boot()
    assert elsewhere.event()["outcome"] == "made"
    deployment.terminate(first, second, elsewhere)
    assert deployment.copies() == []


def test_without_a_snapshot_the_node_goes_without(deployment: Deployment) -> None:
    node = deployment.node(1)
    node.boot()
    assert node.event()["outcome"] == "without"
    assert f"no completed snapshot of {deployment.volume_id}" in node.event()["message"]
    assert node.event()["remedy"] and deployment.copies() == [] and not node.is_mounted
    deployment.terminate(node)


@pytest.mark.parametrize(
    ("sid", "outcome", "words"),
    [
        ("FindVolumes", "without", "DescribeVolumes"),
        ("FindSnapshots", "without", "DescribeSnapshots"),
        ("ReadSnapshots", "without", "EC2 makes no volume of snap-"),
        ("MakeCopies", "without", "EC2 makes no volume of snap-"),
        ("TagWhatIsMade", "without", "EC2 makes no volume of snap-"),
        ("UseCopies", "without", "cannot be attached"),
        ("AttachToNodes", "without", "cannot be attached"),
        ("LetCopyGoWithNode", "stays", "is paid for"),
    ],
)
def test_a_refused_call_costs_the_copy_alone(deployment: Deployment, sid: str, outcome: str, words: str) -> None:
    deployment.scheduled_snapshot()
    deployment.grant(without=sid)
    node = deployment.node(1)
    node.boot()
    told = node.events("checkpoint_copy")
    assert told[0]["outcome"] == outcome
    assert words in told[0]["message"] and told[0]["remedy"]
    assert len([event for event in told if event["message"]]) == 1, "one event says what is wrong"
    assert node.is_mounted == (outcome == "stays")
    deployment.terminate(node)
    for copy in deployment.copies():
        deployment.ec2.delete_volume(VolumeId=copy["VolumeId"])


def test_a_copy_without_a_file_system_is_said_and_goes_with_the_machine_all_the_same(deployment: Deployment) -> None:
    deployment.scheduled_snapshot()
    node = deployment.node(1)
    node.system.kind = None
    node.boot()
    assert node.event()["outcome"] == "without" and "is blank, and should hold data" in node.event()["message"]
    assert not node.system.ran("mkfs.xfs")
    deployment.terminate(node)
    assert deployment.copies() == []


def test_a_node_changes_no_other_node(deployment: Deployment) -> None:
    one, other = deployment.node(1), deployment.node(1)
    with pytest.raises(ClientError, match="ec2:ModifyInstanceAttribute"):
        deployment.client(one.instance_id).modify_instance_attribute(
            InstanceId=other.instance_id, BlockDeviceMappings=[{"DeviceName": "/dev/sdg"}]
        )
    deployment.terminate(one, other)


def test_a_volume_that_never_comes_to_be_is_waited_for_with_a_bound(deployment: Deployment) -> None:
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
    assert node.event()["outcome"] == "without"
    assert "is not made: creating" in node.event()["message"]
    assert node.system.slept == 60
    deployment.terminate(node)
    (copy,) = deployment.copies()
    deployment.ec2.delete_volume(VolumeId=copy["VolumeId"])


def test_a_leaving_node_takes_a_snapshot_when_it_helps(deployment: Deployment) -> None:
    scheduled = deployment.scheduled_snapshot()
    home = deployment.node(0)
    home.boot()
    home.save(hours_ago=1)
    told = home.leave()
    assert (told["outcome"], told["snapshot_id"]) == ("not_needed", scheduled)
    deployment.an_hour_passes()
    home.save()
    told = home.leave()
    assert (told["outcome"], told["volume_id"], told["message"]) == ("taken", deployment.volume_id, None)
    deployment.terminate(home)

    away = deployment.node(1)
    away.boot()
    assert away.event()["snapshot_id"] == told["snapshot_id"], "restore finds it as it does scheduled ones"
    assert away.leave()["outcome"] == "not_needed", "nothing was saved here"
    taken = []
    for _ in range(KEPT + 1):
        deployment.an_hour_passes()
        away.save()
        event = away.leave()
        assert (event["outcome"], event["volume_id"]) == ("taken", away.event()["volume_id"])
        taken.append(event["snapshot_id"])
    left = [one["SnapshotId"] for one in deployment.snapshots()]
    assert left == [scheduled, *taken[-KEPT:]], "the schedule's own are not ours to remove"
    deployment.terminate(away)
    assert [one["SnapshotId"] for one in deployment.snapshots()] == left


@pytest.mark.parametrize(
    ("sid", "outcome"),
    [
        ("FindSnapshots", "refused"),
        ("SnapshotVolume", "refused"),
        ("TakeSnapshots", "refused"),
        ("TagWhatIsMade", "refused"),
        ("RemoveOwnSnapshots", "taken"),
    ],
)
def test_a_refused_snapshot_is_one_event(deployment: Deployment, sid: str, outcome: str) -> None:
    node = deployment.node(0)
    node.boot()
    for _ in range(KEPT):
        node.save()
        assert node.leave()["outcome"] == "taken"
        deployment.an_hour_passes()
    deployment.grant(without=sid)
    node.save()
    told = node.leave()
    assert told["outcome"] == outcome
    assert "not authorized" in told["message"] and told["remedy"]
    deployment.terminate(node)
