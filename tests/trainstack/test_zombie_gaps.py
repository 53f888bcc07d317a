"""A rejected call never counts as an empty answer: what could not be examined is named, and nothing else is affected.

The rejections are those of the embedded cloud's IAM. Sources of the error codes (2026-11): `UnauthorizedOperation`,
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html; `AccessDenied`,
https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from localcloud.cloud import LocalCloud
from stacks.functions.zombie_watch import search as searching
from stacks.functions.zombie_watch.search import Findings, NotExamined
from tests.localcloud.core.conftest import as_role, make_role
from tests.trainstack import test_zombies as setting
from tests.trainstack.test_zombies import HOUR, REGION, Open, archive, call, client
from trainstack.zombies.search import search

MONTH = 31 * 24 * HOUR
ASSETS = f"cdk-hnb659fds-assets-123456789012-{REGION}"
HEARTBEATS, PREPARED, WHEELHOUSES = "heartbeats of the instances of own", "prepared data of own", "wheelhouses"
DENIED = {
    "cloudformation:ListStacks": ["all resources"],
    "cloudformation:DescribeStacks": [HEARTBEATS, PREPARED],
    "cloudformation:GetTemplate": [WHEELHOUSES],
    "ssm:GetParameters": [HEARTBEATS, PREPARED],
    "s3:ListBucket": [HEARTBEATS, PREPARED, f"wheelhouses in s3://{ASSETS}"],
    "s3:GetObject": [PREPARED, WHEELHOUSES],
    "ec2:DescribeInstances": ["instances"],
    "ec2:DescribeVolumes": ["volumes"],
    "ec2:DescribeSnapshots": ["snapshots"],
    "fsx:DescribeFileSystems": ["file systems"],
    "ec2:DescribeCapacityReservations": ["capacity reservations"],
    "ec2:DescribeAddresses": ["Elastic IP addresses"],
    "ec2:DescribeSpotInstanceRequests": ["spot requests"],
    "ec2:DescribeVpcEndpoints": ["VPC endpoints"],
    "ec2:DescribeNatGateways": ["NAT gateways"],
}
"""For each denied action, the resources that cannot be examined without it."""


@pytest.fixture(scope="module", autouse=True)
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """A deployment with an instance, prepared data and a wheelhouse, and resources of a deleted deployment."""
    Open.cloud = LocalCloud(tmp_path_factory.mktemp("cloud"), region=REGION)
    Open.cloud.start()
    assert Open.cloud.clients.account == "123456789012"
    for bucket in (ASSETS, "own-datasets"):
        client("s3").create_bucket(Bucket=bucket)
    url = f"s3://cdk-hnb659fds-assets-${{AWS::AccountId}}-${{AWS::Region}}/{'a' * 64}.zip"
    setting.deploy("own", assets=[url])
    setting.heartbeat("own", setting.instance("own"))
    for key, content in (
        ("a" * 64, archive(["bootstrap/__init__.py", "wheelhouse.json"])),
        ("b" * 64, archive(["image-requirements.txt"], 2 * 2**20)),
        ("c" * 64, archive(["image-requirements.txt"], 2 * 2**20)),
    ):
        client("s3").put_object(Bucket=ASSETS, Key=f"{key}.zip", Body=content)
    commit = json.dumps({"function": "m:f", "source": "raw/text", "options": {}}).encode()
    client("s3").put_object(Bucket="own-datasets", Key=f"datasets/prepared/{'1' * 64}/prepared.json", Body=commit)
    setting.lose()
    yield Open.cloud
    Open.cloud.close()


def look(cloud: LocalCloud, name: str, denied: Sequence[str]) -> Findings:
    """Return the findings a month later, with all permissions except `denied`."""
    statements: list[dict[str, Any]] = [{"Effect": "Allow", "Action": "*", "Resource": "*"}]
    if denied:
        statements.append({"Effect": "Deny", "Action": list(denied), "Resource": "*"})
    clients: dict[str, Any] = {}
    arn = make_role(cloud, name, *statements)
    for service in ("cloudformation", "ec2", "fsx", "s3", "ssm", "sts"):
        clients[service] = as_role(cloud, arn, service)
    return search(clients.__getitem__, REGION, time.time() + MONTH)


@pytest.fixture(scope="module")
def complete(cloud: LocalCloud) -> Findings:
    """The findings with all permissions."""
    findings = look(cloud, "complete", [])
    assert findings.gaps == ()
    kinds = {each.kind for each in findings.zombies}
    assert {"instance", "prepared data", "wheelhouse", "volume", "NAT gateway"} <= kinds
    return findings


@pytest.mark.parametrize("action", DENIED)
def test_a_denied_call_leaves_a_gap_and_no_false_zombie(cloud: LocalCloud, complete: Findings, action: str) -> None:
    findings = look(cloud, action.replace(":", "-"), [action])
    assert [gap.what for gap in findings.gaps] == DENIED[action]
    assert all("not authorized" in gap.reason or "AccessDenied" in gap.reason for gap in findings.gaps), findings.gaps
    names = {(each.kind, each.id) for each in findings.zombies}
    missing = {(each.kind, each.id) for each in complete.zombies} - names
    assert names <= {(each.kind, each.id) for each in complete.zombies}
    if action != "cloudformation:ListStacks":
        assert names, "the other kinds are examined"
    words = " ".join(DENIED[action])
    assert action.startswith("cloudformation:List") or all(kind.split()[-1] in words for kind, _ in missing), missing


def test_an_unreadable_run_document_makes_nothing_a_zombie(cloud: LocalCloud, complete: Findings) -> None:
    name = "/trainstack/own/run"
    text = client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    try:
        client("ssm").put_parameter(Name=name, Value="{}", Overwrite=True)
        findings = search(client, REGION, time.time() + MONTH)
    finally:
        client("ssm").put_parameter(Name=name, Value=text, Overwrite=True)
    assert [gap.what for gap in findings.gaps] == [HEARTBEATS, PREPARED]
    assert all(name in gap.reason for gap in findings.gaps)
    assert not [each for each in findings.zombies if each.deployment == "own"]


def test_a_cut_list_of_heartbeats_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MAX_HEARTBEAT_PAGES", 0)
    with pytest.raises(NotExamined, match="more than 0 pages of objects; delete the heartbeats"):
        searching.heartbeats(client("s3"), "own-control", "runs/own/r1/control/")


def test_the_command_prints_the_gaps_and_fails_after_the_list(
    cloud: LocalCloud, complete: Findings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arn = make_role(
        cloud,
        "no-volumes",
        {"Effect": "Allow", "Action": "*", "Resource": "*"},
        {"Effect": "Deny", "Action": "ec2:DescribeVolumes", "Resource": "*"},
    )
    monkeypatch.setattr("trainstack.session.Account.client", lambda self, service: as_role(cloud, arn, service))
    assert call() == 1
    printed = capsys.readouterr()
    assert f"{REGION}: volumes: not examined: " in printed.out and "DescribeVolumes" in printed.out
    assert "NAT gateway" in printed.out and "resources without a run" in printed.out
    assert "1 groups of resources were not examined: the list above is incomplete" in printed.err
    assert call("--json") == 1
    printed_json = json.loads(capsys.readouterr().out)
    assert [each["what"] for each in printed_json["not_examined"]] == ["volumes"]
    assert printed_json["not_examined"][0]["region"] == REGION and printed_json["zombies"]


def test_a_region_that_cannot_be_reached_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unreachable:
        def __getattr__(self, call: str) -> Any:
            raise EndpointConnectionError(endpoint_url="https://cloudformation.me-south-1.amazonaws.com")

    def opened(account: Any, service: str) -> Any:
        return client(service) if account.region == REGION else Unreachable()

    regions = {"Regions": [{"RegionName": REGION}, {"RegionName": "me-south-1"}]}
    monkeypatch.setattr("trainstack.session.Account.client", opened)
    monkeypatch.setattr(client("ec2").__class__, "describe_regions", lambda self: regions)
    assert call("--all-regions") == 1
    printed = capsys.readouterr().out
    assert "me-south-1: all resources: not examined: Could not connect" in printed and "NAT gateway" in printed
