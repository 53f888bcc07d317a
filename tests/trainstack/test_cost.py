"""The command `cost`: sums of the ledger by each key, estimates, and the comparison with Cost Explorer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from typer.testing import CliRunner

from stacks.capacity.catalogue import Purchase, catalogue
from stacks.functions.run_controller.ledger import documents
from stacks.functions.run_controller.ledger.books import Row
from stacks.functions.run_controller.ledger.machines import Charge, Machine
from stacks.functions.run_controller.policy import ControllerState
from stacks.functions.run_controller.records import state_key
from stacks.functions.run_controller.spending import Spending
from tests.trainstack.stacks import create_stack
from tests.trainstack.test_status import REPORT, RUN
from trainstack.account import Deployment, Observation
from trainstack.commands import app
from trainstack.costs import command as cost_command
from trainstack.costs import cost
from trainstack.costs.clusters import cluster_costs

PRICES: tuple[tuple[str, Purchase], ...] = (("p5.48xlarge", "spot"), ("g6.xlarge", "on_demand"))
BUCKETS = {"CheckpointBucket": "checkpoints", "ControlBucket": "control"}
DAY = 1_790_035_200  # 2026-09-22 00:00 UTC
FIRST = Machine("i-1", DAY, DAY, "g5.xlarge", "us-east-1a", "spot")
SECOND = Machine("i-2", DAY, DAY, "g6.xlarge", "us-east-1b", "on_demand")
HOUR = Charge(seconds=3600.0, usd=0.4, on_demand_usd=1.0)
ROWS = {
    DAY: (Row(FIRST, {"run-1": HOUR}), Row(SECOND, {"run-1": replace(HOUR, usd=1.0)})),
    DAY + 3600: (Row(FIRST, {"run-1": replace(HOUR, seconds=1800.0), "": replace(HOUR, uncertain_seconds=1800.0)}),),
    DAY + 90000: (Row(FIRST, {"run-2": HOUR}),),
}
SPENDING = Spending(usd=1.8, on_demand_usd=3.0, usd_per_hour=1.4, run_hours=2.0, limit_usd=50.0)


class Explorer:
    """Cost Explorer with two pages. Shape: the model of GetCostAndUsage in botocore."""

    def __init__(self, pages: list[dict[str, str]]) -> None:
        self.pages, self.asked = pages, list[dict[str, Any]]()

    def get_cost_and_usage(self, **asked: Any) -> dict[str, Any]:
        number = len(self.asked)
        self.asked.append(dict(asked))
        groups = [
            {"Keys": [service], "Metrics": {"UnblendedCost": {"Amount": usd, "Unit": "USD"}}}
            for service, usd in self.pages[number].items()
        ]
        more = {"NextPageToken": str(number)} if number + 1 < len(self.pages) else {}
        return {"ResultsByTime": [{"Groups": groups}], **more}


@pytest.fixture(scope="module")
def deployed() -> Iterator[Any]:
    """A deployment with a ledger of three hours."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3, cloudformation = boto3.client("s3"), boto3.client("cloudformation")
        for bucket in BUCKETS.values():
            s3.create_bucket(Bucket=bucket)
        outputs = {"FleetId": "trainstack-x", "LogGroup": "/trainstack/x", "RunParameter": "/trainstack/x/run"}
        create_stack(cloudformation, "x-TrainingStack", outputs)
        volume = {
            "Type": "AWS::EC2::Volume",
            "Properties": {"Size": 100, "AvailabilityZone": "us-east-1a", "VolumeType": "gp3"},
        }
        create_stack(cloudformation, "x-StorageStack", {**BUCKETS, "DatasetBucket": "datasets"}, {"Volume": volume})
        boto3.client("ssm").put_parameter(Name="/trainstack/x/run", Type="String", Value=json.dumps(RUN.to_json()))
        for hour, rows in ROWS.items():
            s3.put_object(
                Bucket="control",
                Key=documents.hour_key("x", hour),
                Body=documents.hour_to_bytes(hour, rows, hour + 3600),
            )
        state = asdict(ControllerState(run_digest=RUN.digest(), phase="running", spending=SPENDING))
        s3.put_object(Bucket="control", Key=state_key("x", RUN.run), Body=json.dumps(state).encode())
        yield s3


def test_a_cluster_has_estimates_and_no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two p5.48xlarge Spot Instances, the login node and an interface endpoint in two zones."""
    groups = {
        "Nodes": {"Name": "nodes", "InstanceConfigs": [{"InstanceType": "p5.48xlarge"}], "PurchaseOption": "SPOT",
                  "ScalingConfiguration": {"MinInstanceCount": 0, "MaxInstanceCount": 2}},
        "Login": {"Name": "login", "InstanceConfigs": [{"InstanceType": "g6.xlarge"}],
                  "ScalingConfiguration": {"MinInstanceCount": 1, "MaxInstanceCount": 1}},
    }  # fmt: skip
    endpoint = {"VpcEndpointType": "Interface", "SubnetIds": ["subnet-1", "subnet-2"]}
    templates = {
        "c-PcsStack": {
            "Cluster": {"Type": "AWS::PCS::Cluster", "Properties": {"Size": "SMALL"}},
            **{name: {"Type": "AWS::PCS::ComputeNodeGroup", "Properties": group} for name, group in groups.items()},
        },
        "c-NetworkStack": {"Endpoint": {"Type": "AWS::EC2::VPCEndpoint", "Properties": endpoint}},
    }

    def get_template(_: Any, stack: str) -> dict[str, Any]:
        if stack not in templates:
            raise ClientError({"Error": {"Code": "ValidationError", "Message": "does not exist"}}, "GetTemplate")
        return {"Resources": templates[stack]}

    monkeypatch.setattr(cost, "get_template", get_template)
    found = cluster_costs(lambda _: None, "c", "us-east-1")
    spot, on_demand = (catalogue().usd_per_hour("us-east-1", *each) for each in PRICES)
    assert found is not None and spot is not None and on_demand is not None
    printed = found.to_json()
    assert printed["usd_per_hour"] == {"low": pytest.approx(2 * spot), "high": pytest.approx(2 * spot)}
    assert {each["label"]: each["usd_per_month"] for each in printed["estimates"]} == {
        "interface endpoints": pytest.approx(2 * 0.01 * 730),
        "login node": pytest.approx(on_demand * 730),
    }
    assert "2 x p5.48xlarge, spot" in found.lines()[1] and "PCS's fees" in found.lines()[-1]
    assert cluster_costs(lambda _: None, "other", "us-east-1") is None


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["cost", *arguments])


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("run", {"run-1": 1.8, "run-2": 0.4, "no run": 0.4}),
        ("node", {"i-1 g5.xlarge": 1.6, "i-2 g6.xlarge": 1.0}),
        ("zone", {"us-east-1a": 1.6, "us-east-1b": 1.0}),
        ("market", {"spot": 1.6, "on_demand": 1.0}),
        ("day", {"2026-09-22": 2.2, "2026-09-23": 0.4}),
    ],
)
def test_the_ledger_is_summed_by_each_key(by: str, expected: dict[str, float], deployed: Any) -> None:
    done = run("x", "--by", by, "--json")
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)
    assert {each["label"]: round(each["usd"], 6) for each in found["groups"]} == expected
    assert round(found["total"]["usd"], 6) == 2.6 and found["total"]["instances"] == 2
    assert found["current"]["usd_per_hour"] == 1.4


def test_the_text_names_limits_upper_bounds_and_sources(deployed: Any) -> None:
    done = run()
    assert done.exit_code == 0, done.output
    assert "now 1.40 USD/h, limit 50.00 USD" in done.stdout
    assert "0.50 instance-hours are upper bounds" in done.stdout
    assert "volumes: 8.00 USD (templates at list prices of us-east-1" in done.stdout
    for bucket in BUCKETS.values():
        assert f"bucket {bucket}: 0.00 USD (0.0 GiB, reported by S3 once a day" in done.stdout
    assert "48%" in done.stdout  # saved: 2.60 of 5.00 USD


def test_a_bucket_without_a_reported_size_is_unknown() -> None:
    cloudwatch = SimpleNamespace(get_metric_statistics=lambda **asked: {"Datapoints": []})
    with mock_aws():
        cloudformation = boto3.client("cloudformation", region_name="us-east-1")
        ec2 = boto3.client("ec2", region_name="us-east-1")
        clients = {"cloudwatch": cloudwatch, "ec2": ec2, "cloudformation": cloudformation}
        absent = Deployment("absent", "", "", "a-bucket", "another", "")
        found, _ = cost.estimates(clients.__getitem__, absent, DAY)
        assert cost.estimates(clients.__getitem__, replace(absent, slot="absent"), DAY) == []
    assert (found.label, found.usd_per_month) == ("bucket a-bucket", None) and "once a day" in found.source


def test_a_damaged_hour_is_reported(deployed: Any) -> None:
    key = documents.hour_key("x", DAY + 7200)
    deployed.put_object(Bucket="control", Key=key, Body=b"[]")
    done = run("x")
    deployed.delete_object(Bucket="control", Key=key)
    assert done.exit_code == 0
    assert f"problem: s3://control/{key}: found list, expected an object; its hour is missing" in done.stdout


def test_an_unknown_key_and_an_unknown_deployment_are_refused(deployed: Any) -> None:
    assert run("x", "--by", "colour").exit_code == 2


def test_cost_explorer_is_compared_with_the_ledger(deployed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = Explorer([{cost.COMPUTE: "2.00", "Amazon Simple Storage Service": "0.30"}, {cost.COMPUTE: "0.75"}])
    made: list[tuple[str, str]] = []
    real = boto3.client

    def client(service: str, **more: Any) -> Any:
        made.append((service, more["region_name"]))
        return explorer

    monkeypatch.setattr(cost_command.boto3, "client", client)
    done = run("x", "--actual")
    assert done.exit_code == 0, done.output
    assert "2.75 USD for instances, +0.15 USD compared with the ledger" in done.stdout
    assert "2 requests cost 0.02 USD" in done.stdout
    assert made == [("ce", "us-east-1")] and real is not client
    assert explorer.asked[0]["Filter"] == {"Tags": {"Key": "trainstack:deployment", "Values": ["x"]}}
    assert explorer.asked[0]["TimePeriod"]["Start"] == "2026-09-22"
    assert explorer.asked[1]["NextPageToken"] == "0"


def test_without_an_active_tag_the_remedy_is_named(deployed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_command.boto3, "client", lambda service, **more: Explorer([{}]))
    done = run("x", "--actual")
    assert done.exit_code != 0 and "activate the cost allocation tag" in str(done.exception)


def test_the_price_of_tokens_and_the_goodput() -> None:
    report = replace(REPORT, step=1000, step_seconds=0.5, tokens_per_second=10_000.0)
    controller = ControllerState(spending=replace(SPENDING, run_hours=0.25))
    seen = Observation(Deployment("x", "", "", "", "", ""), RUN, controller, None, report, (), ())
    found = cost.efficiency(seen, replace(HOUR, usd=10.0))
    assert found.usd_per_million_tokens == pytest.approx(10.0 / 5.0)
    assert found.goodput == pytest.approx(500 / 900)
    assert cost.efficiency(replace(seen, status=None), HOUR) == cost.Efficiency(None, None)
