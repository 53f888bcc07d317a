"""Resources without a run are found, and resources of healthy deployments are not.

The embedded cloud refuses RequestSpotInstances: `test_spot_requests` covers this kind.
"""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bootstrap.documents import COPY_TAG, SNAPSHOTS_TAG, Prepare
from bootstrap.documents.object_keys import heartbeat_key
from localcloud.cloud import LocalCloud
from stacks.functions.zombie_watch import handler as watching
from stacks.functions.zombie_watch import search as searching
from stacks.functions.zombie_watch.search import KINDS, Deletion, Zombie
from stacks.functions.zombie_watch.stack_names import deployments
from tests.trainstack.stacks import create_stack
from tests.trainstack.test_status import RUN
from trainstack.account import DEPLOYMENT_TAG
from trainstack.commands import main
from trainstack.zombies.search import can_end, end, search

REGION = "us-east-1"
HOUR = 3600.0
RESERVED = {"InstanceType": "p4d.24xlarge", "InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a"}


class Open:
    """The embedded cloud of the current test."""

    cloud: LocalCloud


def client(service: str) -> Any:
    return Open.cloud.clients.client(service)


@pytest.fixture(autouse=True)
def cloud(tmp_path: Path) -> Iterator[None]:
    Open.cloud = LocalCloud(tmp_path / "cloud", region=REGION)
    Open.cloud.start()
    yield
    Open.cloud.close()


def tags(deployment: str, more: dict[str, str] | None = None) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in {DEPLOYMENT_TAG: deployment, **(more or {})}.items()]


def stack(name: str, **outputs: str) -> None:
    create_stack(client("cloudformation"), name, outputs)


def remove(name: str) -> None:
    client("cloudformation").delete_stack(StackName=name)
    client("cloudformation").get_waiter("stack_delete_complete").wait(StackName=name, WaiterConfig={"Delay": 1})


def deploy(name: str, assets: Sequence[str] = ()) -> None:
    """Create a deployment's stacks and run document. `assets`: URLs that the training stack's template contains."""
    stack(f"{name}-NetworkStack")
    stack(
        f"{name}-StorageStack",
        CheckpointBucket=f"{name}-checkpoints",
        ControlBucket=f"{name}-control",
        DatasetBucket=f"{name}-datasets",
    )
    parameter = f"/trainstack/{name}/run"
    client("s3").create_bucket(Bucket=f"{name}-control")
    client("ssm").put_parameter(Name=parameter, Type="String", Value=json.dumps(RUN.to_json()))
    stack(
        f"{name}-TrainingStack",
        FleetId="f",
        LogGroup=f"/trainstack/{name}",
        RunParameter=parameter,
        **{f"Asset{number}": url for number, url in enumerate(assets)},
    )


def tagged(kind: str, deployment: str, more: dict[str, str] | None = None) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": tags(deployment, more)}]


def instance(deployment: str) -> str:
    image = client("ec2").describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    launched = client("ec2").run_instances(
        ImageId=image,
        InstanceType="g6.xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=tagged("instance", deployment),
    )
    return str(launched["Instances"][0]["InstanceId"])


def volume(deployment: str, copy_of: str = "") -> str:
    more = {COPY_TAG: copy_of} if copy_of else None
    made = client("ec2").create_volume(
        Size=100, AvailabilityZone="us-east-1a", TagSpecifications=tagged("volume", deployment, more)
    )
    return str(made["VolumeId"])


def snapshot(volume_id: str, owner: str) -> str:
    specification = [{"ResourceType": "snapshot", "Tags": [{"Key": SNAPSHOTS_TAG, "Value": owner}]}]
    return str(client("ec2").create_snapshot(VolumeId=volume_id, TagSpecifications=specification)["SnapshotId"])


def network(deployment: str) -> dict[str, str]:
    """Create an endpoint, a NAT gateway and its address."""
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    endpoint = ec2.create_vpc_endpoint(
        VpcId=vpc,
        ServiceName=f"com.amazonaws.{REGION}.logs",
        VpcEndpointType="Interface",
        SubnetIds=[subnet],
        TagSpecifications=tagged("vpc-endpoint", deployment),
    )["VpcEndpoint"]["VpcEndpointId"]
    address = ec2.allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip", deployment))["AllocationId"]
    gateway = ec2.create_nat_gateway(
        SubnetId=subnet, AllocationId=address, TagSpecifications=tagged("natgateway", deployment)
    )["NatGateway"]["NatGatewayId"]
    return {"endpoint": endpoint, "address": address, "gateway": gateway}


def reservation(deployment: str) -> str:
    made = client("ec2").create_capacity_reservation(
        **RESERVED, InstanceCount=2, TagSpecifications=tagged("capacity-reservation", deployment)
    )
    return str(made["CapacityReservation"]["CapacityReservationId"])


def file_system(deployment: str) -> str:
    made = client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]],
        Tags=tags(deployment),
    )
    return str(made["FileSystem"]["FileSystemId"])


def heartbeat(deployment: str, instance_id: str) -> None:
    key = heartbeat_key(deployment, RUN.run, f"AROA1:{instance_id}")
    client("s3").put_object(Bucket=f"{deployment}-control", Key=key, Body=b"{}")


def found(later_seconds: float = 0.0) -> dict[str, Zombie]:
    findings = search(client, REGION, time.time() + later_seconds)
    zombies = findings.zombies
    assert findings.gaps == ()
    assert len({each.id for each in zombies}) == len(zombies), "each resource is reported once"
    return {each.id: each for each in zombies}


def test_resources_of_a_deleted_deployment_are_found() -> None:
    lost = [
        instance("gone"),
        volume("gone"),
        snapshot(volume("gone"), "gone"),
        file_system("gone"),
        reservation("gone"),
        client("ec2").allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip", "gone"))["AllocationId"],
        *(value for key, value in network("gone").items() if key != "address"),
    ]
    zombies = found()
    assert set(lost) <= set(zombies)
    assert {each.kind for each in zombies.values()} == {
        "instance", "volume", "snapshot", "file system", "capacity reservation", "Elastic IP address",
        "VPC endpoint", "NAT gateway",
    }  # fmt: skip
    assert all(each.id in each.remedy and each.deployment == "gone" for each in zombies.values())
    assert zombies[lost[1]].usd_per_month == pytest.approx(8.0), "100 GiB of gp2 or gp3 at 0.08 USD"


def test_a_network_without_training_is_found() -> None:
    stack("idle-NetworkStack")
    stack("idle-StorageStack")
    network("idle")
    zombies = found()
    assert {each.kind for each in zombies.values()} == {"stack", "NAT gateway"}
    assert all("trainstack down FILE" in each.remedy for each in zombies.values())


def test_instances_without_heartbeat_are_found_after_their_boot() -> None:
    deploy("live")
    silent, fresh = instance("live"), instance("live")
    heartbeat("live", fresh)
    assert found() == {}, "still booting"
    key = heartbeat_key("live", RUN.run, f"AROA1:{fresh}")
    sent = client("s3").head_object(Bucket="live-control", Key=key)["LastModified"].timestamp()
    assert sent > time.time() - 60
    zombies = found(2 * HOUR)
    assert "never sent a heartbeat" in zombies[silent].reason
    assert "last heartbeat is 120 min old" in zombies[fresh].reason


def test_an_unused_copy_and_an_unused_reservation_are_found() -> None:
    deploy("live")
    checkpoint = volume("live")
    copy, reserved = volume("live", copy_of=checkpoint), reservation("live")
    assert found() == {}, "an instance may attach the copy, or use the reservation, soon"
    assert set(found(2 * HOUR)) == {copy, reserved}


def test_fifty_resources_of_healthy_deployments_are_not_found() -> None:
    for number in range(5):
        name = f"healthy-{number}"
        deploy(name)
        network(name)
        heartbeat(name, instance(name))
        heartbeat(name, instance(name))
        snapshot(volume(name), name)
        volume(name)
        file_system(name)
        reservation(name)
    client("ec2").create_volume(Size=1, AvailabilityZone="us-east-1a")
    client("ec2").allocate_address(Domain="vpc")
    assert found() == {}, "resources without a deployment's tag are not Trainstack's"


@pytest.mark.parametrize("kind", ["PcsStack", "HyperPodStack", "EksStack"])
def test_nodes_of_a_cluster_are_found_only_after_its_deletion(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in ("NetworkStack", "StorageStack", kind):
        stack(f"cluster-{each}")
    network("cluster")
    node = instance("cluster")
    assert found(2 * HOUR) == {}, "the nodes of a cluster send no heartbeats"
    watch = Watch(monkeypatch, capsys, "own")
    deploy("own")
    assert watch.look()["found"] == 0, "no ObservabilityStack of the cluster's deployment reports its zombies"
    remove(f"cluster-{kind}")
    zombies = found()
    assert zombies[node].reason == "its deployment has no stack with nodes"
    assert {each.kind for each in zombies.values()} == {"instance", "NAT gateway", "stack"}
    assert watch.look()["found"] == 3


def test_nodes_of_a_cluster_next_to_an_old_fleet_send_no_heartbeats() -> None:
    """A file whose engine has changed leaves the TrainingStack of its fleet behind."""
    deploy("changed")
    stack("changed-PcsStack")
    instance("changed")
    assert found(2 * HOUR) == {}


def test_a_slot_does_not_hide_the_stacks_of_a_deployment_with_the_same_name() -> None:
    """`own-2` is a deployment, and slot `2` of a deployment without a StorageStack."""
    stack("own-TrainingStack-2")
    deploy("own-2")
    volume("own-2")
    assert found() == {}
    assert deployments(client)["own-2"] == {"NetworkStack", "StorageStack", "TrainingStack"}


def test_the_address_of_a_network_that_is_being_created_is_not_released() -> None:
    deploy("own")
    address = client("ec2").allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip", "own"))
    (zombie,) = found().values()
    assert zombie.id == address["AllocationId"] and not can_end(zombie, data=True)
    assert zombie.remedy == "trainstack down FILE, with the deployment file of own"


def test_the_commands_of_the_aws_cli_name_the_arguments() -> None:
    call = Deletion("ec2", "cancel_spot_instance_requests", {"SpotInstanceRequestIds": ["sir-1", "sir-2"]})
    expected = "aws ec2 cancel-spot-instance-requests --region us-east-1 --spot-instance-request-ids sir-1 sir-2"
    assert call.command(REGION) == expected
    assert Deletion("fsx", "delete_file_system", {"FileSystemId": "fs-1"}).command(REGION) == (
        "aws fsx delete-file-system --region us-east-1 --file-system-id fs-1"
    )


def lose() -> dict[str, str]:
    """Create each kind of resource that a call deletes, and return the names by kind."""
    lost = {
        "instance": instance("gone"),
        "volume": volume("gone"),
        "file system": file_system("gone"),
        "capacity reservation": reservation("gone"),
    }
    lost["snapshot"] = snapshot(lost["volume"], "gone")
    tagged_address = tagged("elastic-ip", "gone")
    lost["Elastic IP address"] = client("ec2").allocate_address(Domain="vpc", TagSpecifications=tagged_address)[
        "AllocationId"
    ]
    made = network("gone")
    return {**lost, "VPC endpoint": made["endpoint"], "NAT gateway": made["gateway"]}


def test_resources_without_data_are_deleted_and_the_others_only_with_data() -> None:
    deploy("live")
    kept, lost = instance("live"), lose()
    zombies = found()
    assert {each.kind: each.id for each in zombies.values() if each.has_data} == {
        kind: lost[kind] for kind in ("volume", "snapshot", "file system")
    }
    first = [each for each in zombies.values() if can_end(each, data=False)]
    assert end(client, first, zombies.values()) == [(each, "") for each in first]
    # Releasing the gateway's address is possible only after the gateway's deletion.
    left = found()
    assert {each.kind for each in left.values()} <= {"volume", "snapshot", "file system", "Elastic IP address"}
    second = [each for each in left.values() if can_end(each, data=True)]
    assert [problem for _, problem in end(client, second, left.values()) if problem] == []
    assert found() == {}
    states = client("ec2").describe_instances(InstanceIds=[kept])["Reservations"][0]["Instances"][0]["State"]
    assert states["Name"] in ("pending", "running")


def test_a_resource_that_is_in_use_again_or_needs_another_remedy_remains() -> None:
    lost = instance("gone")
    stack("idle-NetworkStack")
    chosen = list(found().values())
    stack("gone-TrainingStack")
    assert {each.id: problem for each, problem in end(client, chosen, found().values())} == {
        lost: "it is in use again, has ended, or could not be examined again",
        "idle-NetworkStack": "trainstack down FILE, with the deployment file of idle",
    }
    assert not can_end(next(each for each in chosen if each.kind == "stack"), data=True)
    states = client("ec2").describe_instances(InstanceIds=[lost])["Reservations"][0]["Instances"][0]["State"]
    assert states["Name"] in ("pending", "running")


def test_a_refused_deletion_is_reported() -> None:
    lost = volume("gone")
    (zombie,) = found().values()
    client("ec2").delete_volume(VolumeId=lost)
    ((_, problem),) = end(client, [zombie], [zombie])
    assert "InvalidVolume.NotFound" in problem


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(("zombies", "--region", REGION, *arguments))
    return int(ended.value.code or 0)


def test_the_command_deletes_only_after_a_confirmation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trainstack.session.Account.client", lambda self, service: client(service))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    lost, data = instance("gone"), volume("gone")
    assert call() == 0 and set(found()) == {lost, data}
    assert "2 resources without a run" in capsys.readouterr().out
    assert call("--end") == 4 and set(found()) == {lost, data}
    assert "Delete 1 resources? nothing was deleted; without a terminal, confirm with --yes" in capsys.readouterr().err
    assert call("--end", "--yes") == 0 and set(found()) == {data}
    assert f"instance {lost}: deleted" in capsys.readouterr().err
    assert call("--end", "--yes") == 0 and set(found()) == {data}
    assert "1 of 1 resources remain" in capsys.readouterr().err
    assert call("--end", "--data", "--yes", "--json") == 0 and found() == {}
    printed = json.loads(capsys.readouterr().out)
    assert [each["id"] for each in printed["zombies"]] == [data] and printed["not_examined"] == []


def test_the_tags_are_those_of_the_nodes_and_stacks() -> None:
    assert (searching.SNAPSHOTS_TAG, searching.COPY_TAG) == (SNAPSHOTS_TAG, COPY_TAG)
    assert searching.DEPLOYMENT_TAG == DEPLOYMENT_TAG


class Watch:
    """The daily function in this process, with the clients of the embedded cloud."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own: str) -> None:
        self._capsys = capsys
        monkeypatch.setattr(watching, "_client", client)
        variables = {"DEPLOYMENT": own, "AWS_REGION": REGION, "CONTROL_BUCKET": f"{own}-control"}
        for name, value in {**variables, "RUN_PARAMETERS": json.dumps({own: f"/trainstack/{own}/run"})}.items():
            monkeypatch.setenv(name, value)

    def look(self) -> dict[str, Any]:
        self._capsys.readouterr()
        watching.handler({}, None)
        (line,) = self._capsys.readouterr().out.splitlines()
        return dict(json.loads(line))


def test_the_daily_search_counts_and_deletes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy("own")
    deploy("other")
    stack("other-ObservabilityStack")
    watch = Watch(monkeypatch, capsys, "own")
    silent, heard, theirs = instance("own"), instance("own"), instance("other")
    nothing = {"event": "zombies", "deployment": "own", "found": 0, "resources": [], "not_examined": []}
    assert watch.look() == nothing
    lost, copy = volume("gone"), volume("other", copy_of="vol-1")
    now = time.time
    monkeypatch.setattr(watching.time, "time", lambda: now() + 2 * HOUR)
    monkeypatch.setattr(watching, "_heartbeats", lambda *_: {heard: now() + 2 * HOUR})
    line = watch.look()
    assert line["found"] == 2 and [name.split()[1] for name in line["resources"]] == [silent, lost], (theirs, copy)
    monkeypatch.setattr(watching, "MAX_LISTED", 1)
    line = watch.look()
    assert (line["found"], len(line["resources"])) == (2, 1)


def test_the_daily_search_reads_the_heartbeats_of_its_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy("own")
    watch = Watch(monkeypatch, capsys, "own")
    heartbeat("own", instance("own"))
    monkeypatch.setattr(searching, "BOOT_SECONDS", -1.0)
    assert watch.look()["found"] == 0
    silent = instance("own")
    assert silent in watch.look()["resources"][0]
    lost = volume("gone")
    client("ssm").put_parameter(Name="/trainstack/own/run", Value="{}", Overwrite=True)
    for problem in ("does not contain a run document", "the parameter does not exist"):
        with pytest.raises(watching.IncompleteSearch, match=f"/trainstack/own/run: {problem}"):
            watch.look()
        line = json.loads(capsys.readouterr().out)
        assert line["found"] == 1 and lost in line["resources"][0], "the other kinds are examined"
        assert problem in line["not_examined"][0]
        client("ssm").delete_parameters(Names=["/trainstack/own/run"])


def test_the_resources_of_a_slot_are_found_when_its_stack_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy("own")
    parameter = "/trainstack/own-2/run"
    stack("own-TrainingStack-2", FleetId="f", LogGroup="/trainstack/own-2", RunParameter=parameter)
    heartbeat("own", instance("own"))
    node = instance("own-2")
    assert found() == {} and deployments(client)["own-2"] == {"NetworkStack", "StorageStack", "TrainingStack"}
    assert found(2 * HOUR)[node].reason == "it never sent a heartbeat", "the slot has no run"
    client("ssm").put_parameter(Name=parameter, Type="String", Value=json.dumps(RUN.to_json()))
    client("s3").put_object(Bucket="own-control", Key=heartbeat_key("own-2", RUN.run, f"AROA2:{node}"), Body=b"{}")
    assert found() == {}
    remove("own-TrainingStack")
    assert not [each for each in found().values() if each.kind == "stack"], "the other slot trains in the network"
    remove("own-TrainingStack-2")
    assert found()[node].reason == "its deployment has no stack with nodes"


def test_the_daily_search_covers_all_slots(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    deploy("own")
    stack("own-ObservabilityStack")
    stack("own-TrainingStack-2", FleetId="f", LogGroup="/trainstack/own-2", RunParameter="/trainstack/own-2/run")
    watch = Watch(monkeypatch, capsys, "own")
    parameters = {"own": "/trainstack/own/run", "own-2": "/trainstack/own-2/run"}
    monkeypatch.setenv("RUN_PARAMETERS", json.dumps(parameters))
    heartbeat("own", instance("own"))
    node = instance("own-2")
    monkeypatch.setattr(searching, "BOOT_SECONDS", -1.0)
    line = watch.look()
    assert line["found"] == 1 and node in line["resources"][0] and "of own-2" in line["resources"][0]


def archive(names: list[str], size: int = 0) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as made:
        for name in names:
            made.writestr(name, json.dumps({"key": f"{'b' * 64}.zip"}) if name == "wheelhouse.json" else "x")
        made.writestr("filler", b"0" * size)
    return content.getvalue()


def test_forgotten_prepared_data_is_found_but_not_that_of_the_run() -> None:
    deploy("own")
    client("s3").create_bucket(Bucket="own-datasets")
    prepare = Prepare("m:f", "raw/text", {"n": 1}, 60)
    run = replace(RUN, prepare=prepare)
    client("ssm").put_parameter(
        Name="/trainstack/own/run", Type="String", Value=json.dumps(run.to_json()), Overwrite=True
    )
    for digest, inputs in (
        ("1" * 64, {"function": "m:f", "source": "raw/text", "options": {"n": 1}}),  # an older result
        ("2" * 64, {"function": "m:f", "source": "raw/text", "options": {"n": 2}}),  # of another configuration
        ("3" * 64, {"function": "m:f", "source": "raw/text", "options": {"n": 1}}),
    ):
        key = f"datasets/prepared/{digest}"
        client("s3").put_object(Bucket="own-datasets", Key=f"{key}/0001/data.bin", Body=b"0" * 1000)
        client("s3").put_object(Bucket="own-datasets", Key=f"{key}/prepared.json", Body=json.dumps(inputs).encode())
        time.sleep(1.1)  # S3's times are in seconds
    assert found() == {}, "a rollback may need it"
    later = found(31 * 24 * HOUR)
    assert {each.id: each.reason.partition(", and ")[2] for each in later.values() if each.kind == "prepared data"} == {
        "1" * 64: "a newer result exists",
        "2" * 64: "the current run has other inputs",
    }
    assert later["1" * 64].has_data and later["1" * 64].deletion is None
    assert later["1" * 64].remedy.endswith(f"prepared s3://own-datasets/datasets --remove {'1' * 64}")


def test_prepared_data_of_another_slot_is_not_found() -> None:
    deploy("own")
    client("s3").create_bucket(Bucket="own-datasets")
    stack("own-TrainingStack-2", FleetId="f", LogGroup="/trainstack/own-2", RunParameter="/trainstack/own-2/run")
    run = replace(RUN, prepare=Prepare("m:f", "raw/text", {}, 60))
    client("ssm").put_parameter(Name="/trainstack/own-2/run", Type="String", Value=json.dumps(run.to_json()))
    inputs = {"function": "m:f", "source": "raw/text", "options": {}}
    key = f"datasets/prepared/{'1' * 64}/prepared.json"
    client("s3").put_object(Bucket="own-datasets", Key=key, Body=json.dumps(inputs).encode())
    assert found(31 * 24 * HOUR) == {}
    client("ssm").delete_parameter(Name="/trainstack/own-2/run")
    assert set(found(31 * 24 * HOUR)) == {"1" * 64}


def test_forgotten_wheelhouse_is_found_but_no_other_asset() -> None:
    assets = f"cdk-hnb659fds-assets-{Open.cloud.clients.account}-{REGION}"
    client("s3").create_bucket(Bucket=assets)
    deploy("own", assets=[f"s3://cdk-hnb659fds-assets-${{AWS::AccountId}}-${{AWS::Region}}/{'a' * 64}.zip"])
    large = 2 * 2**20
    for key, content in (
        ("a" * 64, archive(["bootstrap/__init__.py", "wheelhouse.json"])),  # the node bundle, which names b
        ("b" * 64, archive(["image-requirements.txt", "wheels/x.whl"], large)),
        ("c" * 64, archive(["image-requirements.txt", "wheels/x.whl"], large)),
        ("d" * 64, archive(["site/index.html"], large)),  # an asset of another app
    ):
        client("s3").put_object(Bucket=assets, Key=f"{key}.zip", Body=content)
    assert found() == {}
    later = {each.id: each for each in found(31 * 24 * HOUR).values() if each.kind == "wheelhouse"}
    (zombie,) = later.values()
    assert zombie.id == f"s3://{assets}/{'c' * 64}.zip"
    assert "cdk gc" in zombie.remedy


def test_each_kind_is_covered() -> None:
    assert len(KINDS) == 10
