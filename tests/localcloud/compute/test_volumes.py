"""Volumes: attachment, initialization from snapshots, and modification."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

ZONE = "eu-west-1a"


def refusal(call, **parameters) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def volume(cloud, volume_id: str) -> dict:
    return cloud.ec2.describe_volumes(VolumeIds=[volume_id])["Volumes"][0]


@pytest.fixture(scope="module")
def snapshot(cloud) -> str:
    source = cloud.ec2.create_volume(AvailabilityZone=ZONE, Size=100)["VolumeId"]
    return cloud.ec2.create_snapshot(VolumeId=source)["SnapshotId"]


def test_io2_volume_attaches_to_several_instances_in_its_zone(cloud):
    shared = cloud.ec2.create_volume(
        AvailabilityZone=ZONE, Size=10, VolumeType="io2", Iops=1000, MultiAttachEnabled=True
    )["VolumeId"]
    plain = cloud.ec2.create_volume(AvailabilityZone=ZONE, Size=10, VolumeType="gp3")["VolumeId"]
    first, second = cloud.run(count=2)
    (away,) = cloud.run(SubnetId=cloud.subnets[1])
    for one in (first, second, away):
        cloud.until_state(one, "running")
    for one in (first, second):
        cloud.ec2.attach_volume(VolumeId=shared, InstanceId=one, Device="/dev/sdf")
    shown = volume(cloud, shared)
    assert {link["InstanceId"] for link in shown["Attachments"]} == {first, second}
    assert shown["State"] == "in-use"
    place = {"VolumeId": shared, "Device": "/dev/sdf"}
    assert refusal(cloud.ec2.attach_volume, **place, InstanceId=away)[0] == "InvalidVolume.ZoneMismatch"
    code, message = refusal(cloud.ec2.attach_volume, VolumeId=plain, Device="/dev/sdf", InstanceId=first)
    assert (code, "already in use" in message) == ("InvalidParameterValue", True)
    cloud.ec2.attach_volume(VolumeId=plain, Device="/dev/sdg", InstanceId=first)
    assert refusal(cloud.ec2.attach_volume, VolumeId=plain, Device="/dev/sdg", InstanceId=second)[0] == "VolumeInUse"
    assert refusal(cloud.ec2.delete_volume, VolumeId=shared)[0] == "VolumeInUse"
    cloud.ec2.detach_volume(VolumeId=shared, InstanceId=first)
    assert [link["InstanceId"] for link in volume(cloud, shared)["Attachments"]] == [second]
    cloud.ec2.detach_volume(VolumeId=shared, InstanceId=second)
    cloud.ec2.delete_volume(VolumeId=shared)
    assert refusal(cloud.ec2.describe_volumes, VolumeIds=[shared])[0] == "InvalidVolume.NotFound"


def test_volume_has_its_provisioned_initialization_rate(cloud, snapshot):
    wanted = {"AvailabilityZone": ZONE, "SnapshotId": snapshot}
    made = cloud.ec2.create_volume(**wanted, VolumeInitializationRate=200)["VolumeId"]
    assert volume(cloud, made)["VolumeInitializationRate"] == 200

    wrong = {"AvailabilityZone": ZONE, "Size": 10, "VolumeInitializationRate": 200}
    assert refusal(cloud.ec2.create_volume, **wrong)[0] == "InvalidParameterCombination"
    assert refusal(cloud.ec2.create_volume, **wanted, VolumeInitializationRate=50)[0] == "InvalidParameterValue"


def test_fast_snapshot_restore_is_per_snapshot_and_zone(cloud, snapshot):
    pair = {"SourceSnapshotIds": [snapshot], "AvailabilityZones": [ZONE]}
    (enabled,) = cloud.ec2.enable_fast_snapshot_restores(**pair)["Successful"]
    assert enabled["State"] == "optimizing"

    def state() -> str:
        filters = [{"Name": "snapshot-id", "Values": [snapshot]}]
        return cloud.ec2.describe_fast_snapshot_restores(Filters=filters)["FastSnapshotRestores"][0]["State"]

    cloud.advance(2)
    assert state() == "enabled"
    made = [
        cloud.ec2.create_volume(AvailabilityZone=zone, SnapshotId=snapshot)["VolumeId"] for zone in (ZONE, "eu-west-1b")
    ]
    assert [volume(cloud, one)["FastRestored"] for one in made] == [True, False]
    assert cloud.ec2.disable_fast_snapshot_restores(**pair)["Successful"][0]["State"] == "disabling"
    assert cloud.ec2.describe_fast_snapshot_restores()["FastSnapshotRestores"] == []
    assert cloud.ec2.disable_fast_snapshot_restores(**pair)["Unsuccessful"]


def test_launch_can_set_the_initialization_rate_of_its_volumes(cloud, snapshot):
    data = {"DeviceName": "/dev/sdf", "Ebs": {"SnapshotId": snapshot, "VolumeInitializationRate": 150}}
    (node,) = cloud.run(BlockDeviceMappings=[data])
    found = cloud.ec2.describe_volumes(Filters=[{"Name": "attachment.instance-id", "Values": [node]}])["Volumes"]
    assert 150 in [one.get("VolumeInitializationRate") for one in found]


def test_volume_only_grows_and_changes_at_most_four_times_per_day(cloud):
    made = cloud.ec2.create_volume(AvailabilityZone=ZONE, Size=20, VolumeType="gp3")["VolumeId"]
    code, message = refusal(cloud.ec2.modify_volume, VolumeId=made, Size=19)
    assert (code, message) == ("InvalidParameterValue", "New size cannot be smaller than existing size")
    for size in (30, 40, 50, 60):
        cloud.ec2.modify_volume(VolumeId=made, Size=size)
    assert refusal(cloud.ec2.modify_volume, VolumeId=made, Size=70)[0] == "VolumeModificationRateExceeded"
    assert volume(cloud, made)["Size"] == 60
    cloud.advance(24 * 3600)
    cloud.ec2.modify_volume(VolumeId=made, Size=70)
    assert volume(cloud, made)["Size"] == 70
