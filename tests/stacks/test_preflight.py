"""The checks of `check --aws`, each run against an account with a defect (`localcloud up --account`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.exceptions import ClientError

from localcloud.account.account_file import AccountFileError, account_of
from localcloud.cloud import LocalCloud
from stacks.account import account_problems
from stacks.account.account import Account, Templates
from stacks.account.questions import QUESTIONS, Question, page, permissions
from stacks.config import DeploymentConfig
from stacks.errors import Problem
from stacks.loading import read
from stacks.loading.resolution import resolve
from tests.localcloud.core.conftest import as_role, make_role

from .conftest import ROOT

REGION = "us-east-1"
DLAMI = "/aws/service/deeplearning/ami/x86_64"
UNFIT, DELETED = f"{DLAMI}/unfit/latest/ami-id", f"{DLAMI}/deleted/latest/ami-id"
SPOT_G_VCPUS, VPCS, GP3_TIB, GATEWAYS = "L-3819A6DF", "L-F678F1CE", "L-7A658B76", "L-1B52E74A"
ACCOUNT: dict[str, Any] = {
    "quotas": {SPOT_G_VCPUS: 8, VPCS: 2, GP3_TIB: 1, GATEWAYS: 2},
    "lambda_concurrent_executions": 10,
    "zones": ["a", "b"],
    "denied_actions": ["kms:CreateKey"],
    "endpoint_zones": {"logs": ["a"], "ssmmessages": []},
    "endpoints_without_policy": ["autoscaling"],
    "images": [
        {
            "parameter": UNFIT,
            "name": "Deep Learning OSS Nvidia Driver AMI GPU PyTorch 2.13 (Ubuntu 24.04) 20261101",
            "root_device": "/dev/sda1",
            "gib": 200,
            "architecture": "arm64",
        },
        {"parameter": DELETED, "exists": False},
    ],
    "vpcs": [
        {
            "name": "shared",
            "cidr": "10.0.0.0/16",
            "dns_support": False,
            "dns_servers": ["10.0.0.2"],
            "subnets": {"a": "10.0.0.0/28", "b": "10.0.1.0/28"},
            "endpoints": ["s3", "logs"],
        }
    ],
}
SPOT = {"instance_types": ["g6.xlarge", "g6.2xlarge", "g6.4xlarge"], "nodes": 2}
RESERVED = {"instance_types": ["g6.xlarge"], "market": "reserved", "reservation": {"id": "cr-0123456789abcdef0"}}
SNAPSHOT = "snap-0123456789abcdef0"
BOUNDARY = "arn:aws:iam::123456789012:policy/absent"
GITHUB = {"repository": "owner/name", "repository_id": 1, "owner_id": 2}
PROVIDER = "arn:aws:iam::123456789012:oidc-provider/token.actions.githubusercontent.com"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    running = LocalCloud(tmp_path_factory.mktemp("cloud"), region=REGION, account=account_of(ACCOUNT))
    running.start()
    yield running
    running.close()


def template(stack: str, **resources: Mapping[str, Any]) -> Templates:
    return {"TrainingStack": {"Resources": {}}, stack: {"Resources": dict(resources)}}


ENDPOINT = {"Type": "AWS::EC2::VPCEndpoint", "Properties": {"VpcEndpointType": "Gateway"}}
# The form of the CDK's own templates.
BOOTSTRAP: Templates = {
    "TrainingStack": {
        "Parameters": {"BootstrapVersion": {"Default": "/cdk-bootstrap/hnb659fds/version"}},
        "Rules": {
            "CheckBootstrapVersion": {
                "Assertions": [
                    {
                        "Assert": {
                            "Fn::Not": [{"Fn::Contains": [["1", "2", "3", "4", "5"], {"Ref": "BootstrapVersion"}]}]
                        }
                    }
                ]
            }
        },
        "Resources": {},
    }
}


@dataclass
class Case:
    """A deployment, and parts of the problems that a check must report. `VPC`, `SUBNET_A` etc. become ids."""

    question: str
    expected: list[str]
    sections: dict[str, Any] = field(default_factory=dict)
    capacity: dict[str, Any] = field(default_factory=lambda: dict(SPOT))
    templates: Templates = field(default_factory=lambda: template("TrainingStack"))
    unchecked: bool = False


def existing(**changes: Any) -> dict[str, Any]:
    subnets = [{"id": "SUBNET_A", "zone": "a"}, {"id": "SUBNET_B", "zone": "b"}]
    return {"network": {"existing": {"id": "VPC", "cidr": "10.0.0.0/16", "subnets": subnets, **changes}}}


SWAPPED = [{"id": "SUBNET_A", "zone": "b"}, {"id": "SUBNET_B", "zone": "a"}]
FOREIGN = [{"id": "FOREIGN", "zone": "c"}, {"id": "subnet-0123456789abcdef0", "zone": "a"}]
CASES = [
    Case("CDK bootstrap", ["the account is not bootstrapped in us-east-1"], templates=BOOTSTRAP),
    Case("zones", ["network.zones.2: 'c'", "its zones are a, b"], {"network": {"zones": ["a", "b", "c"]}}),
    Case("address range", ["overlaps with vpc-"], {"network": {"cidr": "10.0.0.0/16", "zones": ["a"]}}),
    Case(
        "network limits",
        ["adds 1 VPCs to 2, but the quota is 2", "adds 2 gateway endpoints in the region to 1, but the quota is 2"],
        templates=template("NetworkStack", Vpc={"Type": "AWS::EC2::VPC"}, S3=ENDPOINT, DynamoDb=ENDPOINT),
    ),
    Case(
        "endpoint services",
        [
            "logs has no endpoint in zone b",
            "no endpoint service for ssmmessages",
            "the endpoint for autoscaling does not support policies",
        ],
        {"network": {"zones": ["a", "b"]}},
    ),
    Case("existing VPC", ["'vpc-0123456789abcdef0': does not exist"], existing(id="vpc-0123456789abcdef0")),
    Case(
        "existing VPC",
        [
            *(
                "is not a range of vpc-",
                "enableDnsSupport disabled",
                "enableDnsHostnames disabled",
                "--enable-dns-support",
            ),
            "DNS servers 10.0.0.2, which nodes cannot reach",
        ],
        existing(cidr="10.1.0.0/16"),
    ),
    Case(
        "existing subnets",
        ["subnets.0.zone: 'b': must be a", "subnets.1.zone: 'a': must be b"],
        existing(subnets=SWAPPED),
    ),
    Case("existing subnets", ["not in vpc-", "'subnet-0123456789abcdef0': does not exist"], existing(subnets=FOREIGN)),
    Case(
        "existing subnets",
        ["free addresses, but 30 nodes need 30 in total"],
        existing(),
        capacity={**SPOT, "nodes": 30},
    ),
    Case(
        "existing endpoints",
        [
            "already has an endpoint for s3",
            "already has an endpoint for logs",
            "[dynamodb, ssm, ssmmessages, autoscaling]",
        ],
        existing(create_endpoints=True, route_table_ids=["TABLE"]),
    ),
    Case(
        "existing endpoints",
        ["cannot reach dynamodb, ssm, ssmmessages, autoscaling: no endpoint, and no route"],
        existing(),
    ),
    Case(
        "existing endpoints",
        ["'rtb-0123456789abcdef0': is not a route table of vpc-", "must include rtb-"],
        existing(create_endpoints=True, route_table_ids=["rtb-0123456789abcdef0"]),
    ),
    Case("image", ["does not exist in us-east-1"], {"node": {"ami": "/no/such/parameter"}}),
    Case("image", ["does not exist in us-east-1, or is not shared"], {"node": {"ami": "ami-0123456789abcdef0"}}),
    Case("image", ["or is not shared with this account; run `python -m stacks ami lock"], {"node": {"ami": DELETED}}),
    Case(
        "image",
        [
            *("is an arm64 image", "node.root_device: '/dev/xvda': must be /dev/sda1", "must be at least 200"),
            "which does not support g7e.2xlarge",
        ],
        {"node": {"ami": "IMAGE"}},
        capacity={"instance_types": ["g7e.2xlarge"]},
    ),
    Case(
        "snapshots",
        [f"storage.dataset_volume.snapshot_id: '{SNAPSHOT}': does not exist"],
        {"storage": {"dataset_volume": {"snapshot_id": SNAPSHOT, "gib": 10}}},
    ),
    Case(
        "snapshots",
        ["storage.dataset_volume.gib: 10: must be at least 40"],
        {"storage": {"dataset_volume": {"snapshot_id": "SNAPSHOT", "gib": 10}}},
    ),
    Case(
        "policies",
        [f"node.permissions_boundary: '{BOUNDARY}': does not exist", "node.extra_policies.0"],
        {"node": {"permissions_boundary": BOUNDARY, "extra_policies": [BOUNDARY]}},
    ),
    Case(
        "service-linked roles",
        [
            "capacity.backend: 'ec2_fleet': needs the role AWSServiceRoleForEC2Fleet",
            "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
        ],
        # Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-fleet-prerequisites.html (2026-11).
        capacity={**SPOT, "backend": "ec2_fleet"},
    ),
    Case("identity provider", ["an account has only one provider"], {"delivery": {"github": GITHUB}}),
    Case(
        "identity provider",
        ["delivery.github.provider_arn", "does not exist in this account"],
        {"delivery": {"github": {**GITHUB, "provider_arn": PROVIDER.replace("123456789012", "210987654321")}}},
    ),
    Case(
        "Lambda concurrency",
        [
            "the functions reserve 1 concurrent executions, but only 10 of 10 are unreserved, and 10 must remain "
            "unreserved"
        ],
        templates=template(
            "TrainingStack", F={"Type": "AWS::Lambda::Function", "Properties": {"ReservedConcurrentExecutions": 1}}
        ),
    ),
    Case("vCPU quotas", ["2 x g6.4xlarge require 32 vCPUs", "request an increase of quota L-3819A6DF"]),
    Case(
        "vCPU quotas",
        ["the vCPU quota for spot instances of p6-b200 is unknown", "look for P6 in Service Quotas"],
        capacity={"instance_types": ["p6-b200.48xlarge"]},
    ),
    Case(
        "vCPU quotas",
        # Each g6.2xlarge has 8 vCPUs: https://aws.amazon.com/ec2/instance-types/g6/ (2026-11)
        ["2 x g6.xlarge and 3 x g6.2xlarge require 32 vCPUs, but the quota"],
        {
            "pipeline": {
                "steps": {
                    "one": {},
                    "two": {
                        "after": "one",
                        "parallel": 3,
                        "sweep": {"seed": [1, 2, 3]},
                        "capacity": {"instance_types": ["g6.2xlarge"]},
                    },
                    "three": {
                        "after": "two",
                        "capacity": {**RESERVED, "market": "capacity_block"},  # outside of the quotas
                    },
                }
            }
        },
        capacity={"instance_types": ["g6.xlarge"], "slots": 2},
    ),
    Case(
        "volume quotas",
        ["1.95 TiB of gp3 volumes are needed", "the quota is 1;"],
        {"node": {"root_volume": {"gib": 1000}}},
    ),
    Case("offerings by zone", ["is not offered in the zones e"], {"network": {"zones": ["e"]}}),
    Case("reservation", ["capacity.reservation.id: 'cr-0123456789abcdef0': does not exist"], capacity=RESERVED),
    Case(
        "reservation",
        ["pipeline.steps.train.capacity.reservation.id: 'cr-0123456789abcdef0': does not exist"],
        {"pipeline": {"steps": {"train": {"capacity": RESERVED}}}},
    ),
    Case("spot placement score", ["is currently low (score 3 of 10)"], capacity={"instance_types": ["g6.xlarge"]}),
    Case(
        "dry run of the launch",
        ["the launch would fail: InvalidSubnetID.NotFound"],
        templates=template(
            "TrainingStack",
            T={
                "Type": "AWS::EC2::LaunchTemplate",
                "Properties": {
                    "LaunchTemplateData": {
                        "ImageId": "ami-0123456789abcdef0",
                        "NetworkInterfaces": [{"DeviceIndex": 0, "SubnetId": "subnet-0123456789abcdef0"}],
                    }
                },
            },
        ),
    ),
]


@pytest.fixture(scope="module")
def ids(cloud: LocalCloud) -> Mapping[str, str]:
    """Return the ids of the account's resources."""
    ec2, iam = cloud.clients.client("ec2"), cloud.clients.client("iam")
    (vpc,) = ec2.describe_vpcs(Filters=[{"Name": "tag:Name", "Values": ["shared"]}])["Vpcs"]
    in_vpc = [{"Name": "vpc-id", "Values": [vpc["VpcId"]]}]
    subnets = {one["AvailabilityZone"][-1]: one["SubnetId"] for one in ec2.describe_subnets(Filters=in_vpc)["Subnets"]}
    in_c = [{"Name": "availability-zone", "Values": [f"{REGION}c"]}]
    volume = ec2.create_volume(Size=40, AvailabilityZone=f"{REGION}a")["VolumeId"]
    iam.create_open_id_connect_provider(Url=f"https://{PROVIDER.partition('/')[2]}", ThumbprintList=["0" * 40])
    return {
        "VPC": vpc["VpcId"],
        "SUBNET_A": subnets["a"],
        "SUBNET_B": subnets["b"],
        "FOREIGN": ec2.describe_subnets(Filters=in_c)["Subnets"][0]["SubnetId"],
        "TABLE": ec2.describe_route_tables(Filters=in_vpc)["RouteTables"][0]["RouteTableId"],
        "IMAGE": cloud.clients.client("ssm").get_parameter(Name=UNFIT)["Parameter"]["Value"],
        "SNAPSHOT": ec2.create_snapshot(VolumeId=volume)["SnapshotId"],
    }


def with_ids(value: Any, ids: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: with_ids(item, ids) for key, item in value.items()}
    if isinstance(value, list):
        return [with_ids(item, ids) for item in value]
    return ids.get(value, value) if isinstance(value, str) else value


def deployment(path: Path, capacity: Mapping[str, Any], sections: Mapping[str, Any]) -> DeploymentConfig:
    file = path / "x.yaml"
    document = {"name": "x", "capacity": dict(capacity), "training": {"dataset": "d"}, **sections}
    file.write_text(yaml.safe_dump(document))
    return resolve(read(file), file)[0]  # some checks concern deployments that `check` rejects


def ask(
    cloud: LocalCloud, title: str, config: DeploymentConfig, templates: Templates, client_of: Callable[[str], Any]
) -> list[Problem]:
    (question,) = (one for one in QUESTIONS if one.title == title)
    assert question.applies(config)
    return account_problems(config, templates=lambda: templates, client_of=client_of, questions=(question,))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.question.replace(" ", "-"))
def test_question_reports_the_defect(case: Case, cloud: LocalCloud, ids: Mapping[str, str], tmp_path: Path) -> None:
    config = deployment(tmp_path, with_ids(case.capacity, ids), with_ids(case.sections, ids))
    found = "\n".join(map(str, ask(cloud, case.question, config, case.templates, cloud.clients.client)))
    for part in case.expected:
        assert part in found


def test_every_question_has_a_case() -> None:
    assert {case.question for case in CASES} == {question.title for question in QUESTIONS}


def test_old_bootstrap_is_reported(cloud: LocalCloud, tmp_path: Path) -> None:
    ssm = cloud.clients.client("ssm")
    ssm.put_parameter(Name="/cdk-bootstrap/hnb659fds/version", Value="5", Type="String")
    config = deployment(tmp_path, SPOT, {})
    (problem,) = ask(cloud, "CDK bootstrap", config, BOOTSTRAP, cloud.clients.client)
    assert "'bootstrap version 5': must be above 5" in str(problem)
    ssm.put_parameter(Name="/cdk-bootstrap/hnb659fds/version", Value="6", Type="String", Overwrite=True)
    assert ask(cloud, "CDK bootstrap", config, BOOTSTRAP, cloud.clients.client) == []
    ssm.delete_parameter(Name="/cdk-bootstrap/hnb659fds/version")


def test_each_question_names_a_missing_permission(cloud: LocalCloud, ids: Mapping[str, str], tmp_path: Path) -> None:
    role, title_of_case = make_role(cloud, "may-nothing"), {case.question: case for case in CASES}
    for title, case in title_of_case.items():
        config = deployment(tmp_path, with_ids(case.capacity, ids), with_ids(case.sections, ids))
        found = ask(cloud, title, config, case.templates, lambda service: as_role(cloud, role, service))
        missing = [one for one in found if f"{title}: missing permission for" in one.rule]
        assert [one.severity for one in missing] == ["warning"], (title, found)


def test_documented_permissions_suffice(cloud: LocalCloud, ids: Mapping[str, str], tmp_path: Path) -> None:
    statement = permissions()["Statement"][0]  # type: ignore[index]
    role = make_role(cloud, "preflight", {"Action": statement["Action"], "Resource": "*"})
    for case in CASES:
        config = deployment(tmp_path, with_ids(case.capacity, ids), with_ids(case.sections, ids))
        found = ask(cloud, case.question, config, case.templates, lambda service: as_role(cloud, role, service))
        assert not [str(one) for one in found if "missing permission" in one.rule]


def test_questions_only_read() -> None:
    """All calls except the dry run's are read-only. Source: the access levels in https://docs.aws.amazon.com/service-authorization/latest/reference/."""
    verbs = ("Get", "List", "Describe")
    others = {call for one in QUESTIONS for call in one.calls if not call.partition(":")[2].startswith(verbs)}
    assert others == {"ec2:RunInstances", "iam:PassRole"}


def test_table_names_existing_files() -> None:
    for question in QUESTIONS:
        for name in question.made_by:
            assert (ROOT / name).exists(), name
    assert (ROOT / "docs" / "preflight.md").read_text() == page(), "python -m stacks preflight > docs/preflight.md"


def test_a_wait_for_the_credentials_is_reported(cloud: LocalCloud, tmp_path: Path) -> None:
    reported = threading.Event()

    def client_of(service: str) -> Any:
        assert reported.wait(30)
        return cloud.clients.client(service)

    found = account_problems(
        deployment(tmp_path, SPOT, {}),
        templates=lambda: template("TrainingStack"),
        progress=lambda text: reported.set() if text.startswith("waiting for the credentials") else None,
        client_of=client_of,
        questions=(),
        progress_seconds=0.01,
    )
    assert found == []


def test_questions_are_asked_at_the_same_time_with_progress(cloud: LocalCloud, tmp_path: Path) -> None:
    """The first check waits for the second one, and the second one for a line of progress."""
    second_asked, reported = threading.Event(), threading.Event()

    def first(account: Account) -> Iterator[Problem]:
        assert second_asked.wait(30)
        yield Problem("first", None, "rule", "remedy")

    def second(account: Account) -> Iterator[Problem]:
        second_asked.set()
        assert reported.wait(30)
        yield Problem("second", None, "rule", "remedy")

    def progress(text: str) -> None:
        if text == "waiting for second":
            reported.set()

    questions = tuple(
        Question(ask.__name__, "", (), "", (), lambda config: True, ask)  # type: ignore[arg-type]
        for ask in (first, second)
    )
    found = account_problems(
        deployment(tmp_path, SPOT, {}),
        templates=lambda: template("TrainingStack"),
        progress=progress,
        client_of=cloud.clients.client,
        questions=questions,
        progress_seconds=0.01,
    )
    assert [one.path for one in found] == ["first", "second"]


def test_account_denies_actions_and_zones_to_everybody(cloud: LocalCloud) -> None:
    with pytest.raises(ClientError, match="service control policy"):
        cloud.clients.client("kms").create_key()
    ec2 = cloud.clients.client("ec2")
    (vpc,) = ec2.describe_vpcs(Filters=[{"Name": "tag:Name", "Values": ["shared"]}])["Vpcs"]
    with pytest.raises(ClientError, match=r"availabilityZone is invalid.*us-east-1a, us-east-1b"):
        ec2.create_subnet(VpcId=vpc["VpcId"], CidrBlock="10.0.2.0/28", AvailabilityZone=f"{REGION}c")


def test_account_file_reports_all_problems() -> None:
    wrong = {"quotas": {"L-00000000": 1}, "zone": ["a"], "images": [{"gib": "large"}], "vpcs": "none"}
    with pytest.raises(AccountFileError) as caught:
        account_of(wrong)
    for part in ("zone: unknown key", "images.0.parameter: is missing", "images.0.gib: 'large'", "vpcs: 'none'"):
        assert part in str(caught.value)
    with pytest.raises(AccountFileError, match=r"quotas\.L-00000000: unknown quota"):
        account_of({"quotas": {"L-00000000": 1}})
