"""`stacks destroy`, repeated first deploys and the remaining data, with fake AWS clients and on the embedded cloud."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from stacks.delivery import destroy as destroying
from stacks.delivery.failed_create import end_protection
from stacks.delivery.remaining import Remaining, remaining
from stacks.errors import DeployError
from stacks.loading import read
from tests.gitops.conftest import Repository

CONFIG = Path(__file__).resolve().parents[2] / "config" / "minimal.yaml"
STORAGE = "minimal-StorageStack"


def resource(name: str, kind: str, status: str = "CREATE_COMPLETE") -> dict[str, str]:
    physical_id = f"{name.lower()}-id"
    return {
        "LogicalResourceId": name,
        "PhysicalResourceId": physical_id,
        "ResourceType": kind,
        "ResourceStatus": status,
        "ResourceStatusReason": f"{name} is in use",
    }


class Account:
    """A fake account: stacks by name, with their description and resources. It is both session and client."""

    def __init__(self, stacks: Mapping[str, tuple[dict[str, Any], list[dict[str, str]]]], **answers: Any) -> None:
        self.stacks = dict(stacks)
        self.answers = answers
        self.deleted: list[str] = []
        self.unprotected: list[str] = []

    def client(self, service: str) -> Account:
        return self

    def describe_stacks(self, *, StackName: str) -> dict[str, Any]:  # noqa: N803
        if StackName not in self.stacks:
            raise ClientError({"Error": {"Code": "ValidationError", "Message": "does not exist"}}, "DescribeStacks")
        return {"Stacks": [{"StackId": StackName, **self.stacks[StackName][0]}]}

    def update_termination_protection(self, *, StackName: str, EnableTerminationProtection: bool) -> None:  # noqa: N803
        assert not EnableTerminationProtection
        self.unprotected.append(StackName)

    def delete_stack(self, *, StackName: str) -> None:  # noqa: N803
        self.deleted.append(StackName)
        failed = self.answers.get("undeletable") == StackName
        state, held = self.stacks.pop(StackName)
        if failed:
            held = [{**one, "ResourceStatus": "DELETE_FAILED"} for one in held]
            self.stacks[StackName] = ({**state, "StackStatus": "DELETE_FAILED"}, held)

    def get_paginator(self, name: str) -> Any:
        account = self

        class Paginator:
            def paginate(self, **request: Any) -> Iterator[dict[str, Any]]:
                if name == "list_stack_resources":
                    yield {"StackResourceSummaries": account.stacks[request["StackName"]][1]}
                elif name == "describe_stacks":
                    yield {"Stacks": [{"StackName": stack, **found} for stack, (found, _) in account.stacks.items()]}
                elif name == "describe_volumes":
                    yield {"Volumes": account.answers.get("copies", [])}
                else:
                    key = {"list_object_versions": "Versions", "describe_snapshots": "Snapshots"}.get(
                        name, "imageDetails"
                    )
                    found = account.answers.get(name, [])
                    if isinstance(found, ClientError):
                        raise found
                    yield {key: found}

        return Paginator()

    def describe_volumes(self, *, VolumeIds: list[str]) -> dict[str, Any]:  # noqa: N803
        return {"Volumes": [self.answers["volume"]]}

    def describe_file_systems(self, *, FileSystemIds: list[str]) -> dict[str, Any]:  # noqa: N803
        return {"FileSystems": [self.answers["file_system"]]}


def failed(status: str, *held: dict[str, str]) -> Account:
    return Account({STORAGE: ({"StackStatus": status, "EnableTerminationProtection": True}, list(held))})


@pytest.mark.parametrize("state", ["DELETE_COMPLETE", "DELETE_SKIPPED"])
def test_protection_of_a_failed_create_without_resources_ends(state: str) -> None:
    """The CDK CLI's next deploy deletes the stack, which its own protection prevents: aws/aws-cdk issue 11687."""
    account = failed("ROLLBACK_COMPLETE", resource("Key", "AWS::KMS::Key", state))
    (note,) = end_protection(account, ["minimal-NetworkStack", STORAGE])
    assert account.unprotected == [STORAGE]
    assert note.startswith(f"{STORAGE}: failed to create and is empty")


def test_service_linked_roles_of_a_failed_create_are_not_created_again() -> None:
    account = failed("ROLLBACK_COMPLETE", resource("SpotRole", "AWS::IAM::ServiceLinkedRole", "DELETE_SKIPPED"))
    _, note = end_protection(account, [STORAGE])
    assert "left spotrole-id in the account: deploy without the parameter ServiceLinkedRoles=create" in note


@pytest.mark.parametrize("status", ["CREATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "UPDATE_COMPLETE"])
def test_protection_of_a_deployed_stack_stays(status: str) -> None:
    account = failed(status, resource("Key", "AWS::KMS::Key"))
    assert end_protection(account, [STORAGE]) == []
    assert account.unprotected == []


def test_failed_create_with_resources_is_refused_with_both_commands() -> None:
    account = failed("ROLLBACK_FAILED", resource("Datasets", "AWS::S3::Bucket", "DELETE_FAILED"))
    with pytest.raises(DeployError, match=r"still contains Datasets \(DELETE_FAILED\)") as caught:
        end_protection(account, [STORAGE])
    assert "update-termination-protection" in str(caught.value) and "delete-stack" in str(caught.value)
    assert account.unprotected == []


# Prices (2026-11): https://aws.amazon.com/s3/pricing/, https://aws.amazon.com/kms/pricing/,
# https://aws.amazon.com/ebs/pricing/, https://aws.amazon.com/fsx/lustre/pricing/ and https://aws.amazon.com/ecr/pricing/
# (us-east-1).
VOLUME = {"VolumeId": "vol-1", "Size": 100, "VolumeType": "gp3", "State": "available", "Iops": 4000, "Throughput": 225}
FILE_SYSTEM = {
    "StorageCapacity": 1200,
    "Lifecycle": "AVAILABLE",
    "LustreConfiguration": {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250},
}
DATA = [
    resource("Checkpoints", "AWS::S3::Bucket"),
    resource("Key", "AWS::KMS::Key"),
    resource("Volume", "AWS::EC2::Volume"),
    resource("Lustre", "AWS::FSx::FileSystem"),
    resource("Images", "AWS::ECR::Repository"),
    resource("Old", "AWS::EC2::Volume", "DELETE_COMPLETE"),
    resource("Policy", "AWS::S3::BucketPolicy"),
]


def test_each_remaining_resource_has_its_monthly_price() -> None:
    account = Account(
        {STORAGE: ({"StackStatus": "CREATE_COMPLETE"}, DATA)},
        list_object_versions=[{"Size": 3 * 2**30}, {"Size": 2**30}],
        describe_snapshots=[{"SnapshotId": "snap-1", "VolumeSize": 100}],
        volume=VOLUME,
        copies=[{**VOLUME, "VolumeId": "vol-2", "Iops": 3000, "Throughput": 125}],
        file_system=FILE_SYSTEM,
        describe_images=[{"imageSizeInBytes": 4 * 10**9}, {"imageSizeInBytes": 10**9}],
    )
    found = [(one.kind, one.id, round(one.usd_per_month or 0.0, 3)) for one in remaining(account, "minimal")]
    assert found == [
        ("bucket", "checkpoints-id", 0.092),
        ("key", "key-id", 1.0),
        ("volume", "volume-id", 17.0),
        ("file system", "lustre-id", 252.0),
        ("images", "images-id", 0.5),
        ("snapshot", "snap-1", 5.0),
        ("volume copy", "vol-2", 8.0),
    ]


def test_bucket_that_cannot_be_listed_has_an_unknown_price() -> None:
    denied = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "ListObjectVersions")
    account = Account({STORAGE: ({"StackStatus": "CREATE_COMPLETE"}, DATA[:1])}, list_object_versions=denied)
    (one,) = remaining(account, "minimal")
    assert one.usd_per_month is None and "price unknown" in str(one) and "AccessDenied" in str(one)
    assert destroying._total([one, Remaining("key", "k", "", 1.0)]).endswith(
        "1.00 USD per month, excluding 1 unknown prices"
    )


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> Account:
    names = [f"minimal-{stack}" for stack in ("NetworkStack", "TrainingStack", "ObservabilityStack")]
    account = Account(
        {name: ({"StackStatus": "CREATE_COMPLETE"}, [resource("Vpc", "AWS::EC2::VPC")]) for name in names}
    )
    account.stacks[STORAGE] = ({"StackStatus": "CREATE_COMPLETE", "EnableTerminationProtection": True}, DATA[1:2])
    for session in ("deploy_session", "lookup_session"):
        monkeypatch.setattr(destroying, session, lambda config: account)
    monkeypatch.setattr(destroying, "POLL_SECONDS", 0.0)
    return account


def test_destroy_never_names_the_storage_stack(deployed: Account, capsys: pytest.CaptureFixture[str]) -> None:
    destroying.destroy(read(CONFIG), CONFIG, is_confirmed=True)
    assert deployed.deleted == ["minimal-ObservabilityStack", "minimal-TrainingStack", "minimal-NetworkStack"]
    assert list(deployed.stacks) == [STORAGE]
    assert "total: 1.00 USD per month" in capsys.readouterr().out
    destroying.destroy(read(CONFIG), CONFIG, is_confirmed=False)  # nothing is left to confirm


def test_destroy_reports_why_a_stack_cannot_be_deleted(deployed: Account) -> None:
    deployed.answers["undeletable"] = "minimal-TrainingStack"
    with pytest.raises(
        DeployError, match="minimal-TrainingStack: CloudFormation could not delete it:\n  Vpc: Vpc is in use"
    ):
        destroying.destroy(read(CONFIG), CONFIG, is_confirmed=True)
    assert "minimal-NetworkStack" in deployed.stacks


def test_destroy_asks_first(deployed: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeployError, match="--force"):  # no terminal
        destroying.destroy(read(CONFIG), CONFIG, is_confirmed=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    with pytest.raises(DeployError, match="nothing was deleted"):
        destroying.destroy(read(CONFIG), CONFIG, is_confirmed=False)
    assert deployed.deleted == []


def test_network_of_a_file_system_stays_without_its_billed_parts(
    deployed: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed.stacks[STORAGE][1].append(resource("Lustre", "AWS::FSx::FileSystem"))
    deployed.answers["file_system"] = FILE_SYSTEM
    commands: list[list[str]] = []
    monkeypatch.setattr(destroying, "run_cdk", lambda config, file, arguments, **_: commands.append(arguments))
    destroying.destroy(read(CONFIG), CONFIG, is_confirmed=True)
    assert deployed.deleted == ["minimal-ObservabilityStack", "minimal-TrainingStack"]
    (command,) = commands
    assert command[:3] == ["deploy", "NetworkStack", "--exclusively"] and "idle-network=true" in command


@pytest.mark.deploy
@pytest.mark.timeout(1800)
def test_failed_first_deploy_is_repeated_and_destroy_leaves_only_data(repository: Repository) -> None:
    """A policy with the boundary's name makes the creation of StorageStack fail."""
    cloud, name = repository.workplace.cloud, str(repository.config["name"])
    iam, cloudformation = cloud.client("iam"), cloud.client("cloudformation")
    repository.config["storage"] = {"lustre": {"zone": "a"}}
    repository.merge("First version", network__nat=True)
    deny = {"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Action": "s3:*", "Resource": "*"}]}
    policy = iam.create_policy(PolicyName=f"trainstack-{name}-us-east-1-boundary", PolicyDocument=json.dumps(deny))[
        "Policy"
    ]["Arn"]
    first = repository.deliver("deploy", "--approved", "40")
    assert first.exit_code == 1 and "already exists" in first.output.lower()
    (stack,) = cloudformation.describe_stacks(StackName=f"{name}-StorageStack")["Stacks"]
    assert (stack["StackStatus"], stack["EnableTerminationProtection"]) == ("ROLLBACK_COMPLETE", True)
    buckets = [each["Name"] for each in cloud.client("s3").list_buckets()["Buckets"]]
    assert [each for each in buckets if name in each] == []
    iam.delete_policy(PolicyArn=policy)
    plain = repository.workplace.cdk(
        "deploy", "StorageStack", "--require-approval", "never", "--context", "allow-destroy=false"
    )
    assert plain.exit_code != 0 and "TerminationProtection is enabled" in plain.output
    second = repository.deliver("deploy", "--approved", "40")
    assert second.exit_code == 0, second.output
    (stack,) = cloudformation.describe_stacks(StackName=f"{name}-StorageStack")["Stacks"]
    assert (stack["StackStatus"], stack["EnableTerminationProtection"]) == ("CREATE_COMPLETE", True)
    destroyed = repository.run("python", "-m", "stacks", "destroy", "config/deployed.yaml", "--force")
    assert destroyed.exit_code == 0, destroyed.output
    assert repository.workplace.stacks() == [f"{name}-NetworkStack", f"{name}-StorageStack"]
    assert {each["State"] for each in cloud.client("ec2").describe_vpc_endpoints()["VpcEndpoints"]} == {"deleted"}
    assert {each["State"] for each in cloud.client("ec2").describe_nat_gateways()["NatGateways"]} <= {"deleted"}
    listed = re.findall(r"^  (bucket|key|file system) +\S+ +[0-9.]+ USD per month", destroyed.output, re.MULTILINE)
    assert sorted(listed) == ["bucket"] * 4 + ["file system", "key"]
    assert repository.workplace.denied() == []
