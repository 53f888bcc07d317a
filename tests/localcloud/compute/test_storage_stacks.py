"""Storage created by stacks: scheduled snapshots, volumes with a final snapshot, Lustre file systems."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError


def refusal(call, **parameters) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def snapshots(cloud, *filters: tuple[str, str]) -> list[dict]:
    wanted = [{"Name": name, "Values": [value]} for name, value in filters]
    return cloud.ec2.describe_snapshots(OwnerIds=["self"], Filters=wanted)["Snapshots"]


def test_policy_takes_and_deletes_snapshots_of_tagged_volumes_and_the_final_snapshot_is_kept(cloud):
    trust = {"Effect": "Allow", "Principal": {"Service": "dlm.amazonaws.com"}, "Action": "sts:AssumeRole"}

    def resources(kept: int) -> dict:
        schedule = {
            "Name": "often", "CreateRule": {"Interval": 1, "IntervalUnit": "HOURS"}, "RetainRule": {"Count": kept},
            "TagsToAdd": [{"Key": "by", "Value": "policy"}],
        }  # fmt: skip
        policy = {
            "Description": "checkpoints", "State": "ENABLED", "ExecutionRoleArn": {"Fn::GetAtt": ["Role", "Arn"]},
            "PolicyDetails": {
                "ResourceTypes": ["VOLUME"], "TargetTags": [{"Key": "snapshot", "Value": "yes"}],
                "Schedules": [schedule],
            },
        }  # fmt: skip
        volume = {
            "AvailabilityZone": "eu-west-1a", "Size": 10, "VolumeType": "gp3",
            "Tags": [{"Key": "snapshot", "Value": "yes"}],
        }  # fmt: skip
        document = {"Version": "2012-10-17", "Statement": [trust]}
        return {
            "Role": {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": document}},
            "Policy": {"Type": "AWS::DLM::LifecyclePolicy", "Properties": policy},
            "Volume": {"Type": "AWS::EC2::Volume", "Properties": volume, "DeletionPolicy": "Snapshot"},
        }

    made = cloud.deploy("snapshots", resources(2))
    of_volume = ("volume-id", made["Volume"])
    for count in (1, 2):
        cloud.advance(3600)
        cloud.until(lambda: len(snapshots(cloud, of_volume)) == count, f"{count} snapshots")  # noqa: B023
    first = snapshots(cloud, of_volume)[0]["SnapshotId"]
    cloud.advance(3600)
    cloud.until(
        lambda: first not in [one["SnapshotId"] for one in snapshots(cloud, of_volume)], "the oldest to be deleted"
    )
    assert len(snapshots(cloud, of_volume)) == 2
    tags = {tag["Key"]: tag["Value"] for tag in snapshots(cloud, of_volume)[0]["Tags"]}
    assert (tags["by"], tags["aws:dlm:lifecycle-policy-id"]) == ("policy", made["Policy"])
    assert cloud.deploy("snapshots", resources(1)) == made
    cloud.destroy("snapshots")
    left = snapshots(cloud, of_volume)
    assert any("before deletion" in one["Description"] for one in left)
    assert refusal(cloud.ec2.describe_volumes, VolumeIds=[made["Volume"]])[0] == "InvalidVolume.NotFound"


def test_lustre_file_system_grows_in_place_and_links_a_bucket(cloud):
    cloud.client("s3").create_bucket(
        Bucket="lustre-data", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
    )

    def resources(capacity: int, deployment: str = "PERSISTENT_2") -> dict:
        system = {
            "FileSystemType": "LUSTRE", "FileSystemTypeVersion": "2.15", "StorageCapacity": capacity,
            "SubnetIds": [cloud.subnets[0]], "SecurityGroupIds": [cloud.security_group],
            "LustreConfiguration": {
                "DeploymentType": deployment, "PerUnitStorageThroughput": 250, "DataCompressionType": "LZ4"
            },
        }  # fmt: skip
        link = {
            "FileSystemId": {"Ref": "Files"}, "FileSystemPath": "/data", "DataRepositoryPath": "s3://lustre-data/",
            "S3": {"AutoImportPolicy": {"Events": ["NEW", "CHANGED"]}},
        }  # fmt: skip
        name = {"Name": "/lustre/mount", "Type": "String",
                "Value": {"Fn::Sub": "${Files.DNSName}@tcp:/${Files.LustreMountName}"}}  # fmt: skip
        return {
            "Files": {"Type": "AWS::FSx::FileSystem", "Properties": system},
            "Link": {"Type": "AWS::FSx::DataRepositoryAssociation", "Properties": link},
            "Mount": {"Type": "AWS::SSM::Parameter", "Properties": name},
        }

    fsx = cloud.client("fsx")
    made = cloud.deploy("lustre", resources(1200))
    mount = cloud.client("ssm").get_parameter(Name="/lustre/mount")["Parameter"]["Value"]
    (system,) = fsx.describe_file_systems(FileSystemIds=[made["Files"]])["FileSystems"]
    assert mount == f"{system['DNSName']}@tcp:/{system['LustreConfiguration']['MountName']}"
    interface = system["NetworkInterfaceIds"][0]
    assert cloud.ec2.describe_network_interfaces(NetworkInterfaceIds=[interface])["NetworkInterfaces"]
    assert cloud.deploy("lustre", resources(2400)) == made
    (system,) = fsx.describe_file_systems(FileSystemIds=[made["Files"]])["FileSystems"]
    assert system["StorageCapacity"] == 2400
    more = {"FileSystemId": made["Files"], "StorageCapacity": 4800}
    assert "less than 6 hours ago" in refusal(fsx.update_file_system, **more)[1]
    cloud.advance(6 * 3600)
    assert "greater than 2400" in refusal(fsx.update_file_system, **{**more, "StorageCapacity": 1200})[1]
    assert fsx.update_file_system(**more)["FileSystem"]["StorageCapacity"] == 4800
    taken = {"FileSystemId": made["Files"], "FileSystemPath": "/data/more", "DataRepositoryPath": "s3://lustre-data/x"}
    assert "overlaps /data" in refusal(fsx.create_data_repository_association, **taken)[1]
    cloud.destroy("lustre")
    assert refusal(fsx.describe_file_systems, FileSystemIds=[made["Files"]])[0] == "FileSystemNotFound"
    assert refusal(cloud.ec2.describe_network_interfaces, NetworkInterfaceIds=[interface])[0] == (
        "InvalidNetworkInterfaceID.NotFound"
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"StorageCapacity": 1300}, "must be 1200 or a multiple of 2400"),
        ({"LustreConfiguration": {"DeploymentType": "PERSISTENT_2"}}, "PerUnitStorageThroughput None"),
        ({"FileSystemTypeVersion": "2.10"}, "2.10 is not supported by PERSISTENT_2"),
        (
            {"LustreConfiguration": {"DeploymentType": "SCRATCH_2", "PerUnitStorageThroughput": 200}},
            "PerUnitStorageThroughput is not supported by SCRATCH_2 SSD",
        ),
    ],
)
def test_invalid_file_systems_are_refused(cloud, change, text):
    right = {
        "FileSystemType": "LUSTRE", "StorageCapacity": 1200, "SubnetIds": [cloud.subnets[0]],
        "LustreConfiguration": {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
    }  # fmt: skip
    code, message = refusal(cloud.client("fsx").create_file_system, **right | change)
    assert (code, text in message) == ("BadRequest", True)


def test_default_version_does_not_support_data_repositories(cloud):
    fsx = cloud.client("fsx")
    system = fsx.create_file_system(
        FileSystemType="LUSTRE", StorageCapacity=1200, SubnetIds=[cloud.subnets[0]],
        LustreConfiguration={"DeploymentType": "SCRATCH_2"},
    )["FileSystem"]  # fmt: skip
    code, message = refusal(
        fsx.create_data_repository_association,
        FileSystemId=system["FileSystemId"], FileSystemPath="/", DataRepositoryPath="s3://lustre-data",
    )  # fmt: skip
    assert (code, "not supported on Lustre 2.10" in message) == ("BadRequest", True)
    fsx.delete_file_system(FileSystemId=system["FileSystemId"])


def test_stack_cannot_shrink_a_volume_and_keeps_it(cloud):
    def resources(gib: int) -> dict:
        volume = {"AvailabilityZone": "eu-west-1a", "Size": gib, "VolumeType": "gp3"}
        return {"Volume": {"Type": "AWS::EC2::Volume", "Properties": volume}}

    made = cloud.deploy("shrinking", resources(20))
    with pytest.raises(AssertionError, match="New size cannot be smaller than existing size"):
        cloud.deploy("shrinking", resources(10))
    assert cloud.ec2.describe_volumes(VolumeIds=[made["Volume"]])["Volumes"][0]["Size"] == 20
    assert cloud.deploy("shrinking", resources(30)) == made
