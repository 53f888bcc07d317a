"""Spot placement scores: when the controller requests them, and how they change its choice of zones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from moto import mock_aws

from localcloud.cloud import LocalCloud
from stacks.functions.run_controller.market.scores import SCORE_HOURS, PlacementScores, is_due
from stacks.functions.run_controller.places import HOUR, Place
from stacks.functions.run_controller.policy import ControllerState, Resize, Settings, decide
from stacks.functions.run_controller.records import InvalidRecord, state_of
from tests.stacks.run_controller.test_handler import World
from tests.stacks.run_controller.test_zone_choice import NOW, PLACES, SETTINGS, situation

TYPES = "g5.xlarge,g6.xlarge,g6e.xlarge"
THREE = replace(SETTINGS, places=tuple(replace(place, instance_type=TYPES) for place in PLACES))


def test_low_score_moves_the_first_attempt_to_another_zone() -> None:
    assert decide(situation(ControllerState())).actions == (Resize(2, ("subnet-b",)),)  # the cheapest
    known = ControllerState(scores={"subnet-a": 10, "subnet-b": 1, "subnet-c": 9})
    wanted = replace(SETTINGS, choose="availability")
    assert decide(situation(known, settings=wanted)).actions == (Resize(2, ("subnet-a",)),)


@pytest.mark.parametrize(
    ("settings", "due"),
    [(THREE, True), (SETTINGS, False), (replace(THREE, choose="order"), False), (Settings(("s",), False, 1, 1), False)],
)
def test_question_needs_a_choice_and_three_types(settings: Settings, due: bool) -> None:
    assert is_due(settings, ControllerState(), NOW) is due


def test_question_is_repeated_after_hours_only() -> None:
    asked = ControllerState(scored_unix_seconds=NOW)
    assert not is_due(THREE, asked, NOW + SCORE_HOURS * HOUR - 1.0)
    assert is_due(THREE, asked, NOW + SCORE_HOURS * HOUR)


def test_zone_ids_are_mapped_to_subnets() -> None:
    ec2 = boto3.client("ec2", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    stub = Stubber(ec2)
    zones = {"subnet-a": "use1-az4", "subnet-b": "use1-az1", "subnet-c": "use1-az2"}
    subnets = [{"SubnetId": subnet, "AvailabilityZoneId": zone} for subnet, zone in zones.items()]
    stub.add_response("describe_subnets", {"Subnets": subnets}, {"SubnetIds": list(zones)})
    scores = [
        {"Region": "us-east-1", "AvailabilityZoneId": zone, "Score": score}
        for zone, score in (("use1-az1", 3), ("use1-az4", 9))
    ]
    asked = {
        "InstanceTypes": TYPES.split(","),
        "TargetCapacity": 4,
        "SingleAvailabilityZone": True,
        "RegionNames": ["us-east-1"],
    }
    stub.add_response("get_spot_placement_scores", {"SpotPlacementScores": scores}, asked)
    with stub:
        assert PlacementScores(THREE, lambda service: ec2).now(4) == ({"subnet-a": 9, "subnet-b": 3}, None)


def test_denied_question_is_reported() -> None:
    def client(service: str) -> Any:
        raise ClientError({"Error": {"Code": "UnauthorizedOperation", "Message": "no"}}, "DescribeSubnets")

    scores, problem = PlacementScores(THREE, client).now(4)
    assert scores == {}
    assert problem is not None and "ranked without them" in problem


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    running = LocalCloud(tmp_path_factory.mktemp("cloud"), region="us-east-1")
    running.start()
    yield running
    running.close()


def test_embedded_cloud_returns_scores_for_the_subnets(cloud: LocalCloud) -> None:
    ec2 = cloud.clients.client("ec2")
    found = ec2.describe_subnets()["Subnets"][:2]
    subnets = tuple(each["SubnetId"] for each in found)
    places = tuple(Place("us-east-1", each["AvailabilityZone"], TYPES, "spot") for each in found)
    settings = Settings(subnets, True, 600.0, 3, choose="cost", places=places)
    scores, problem = PlacementScores(settings, cloud.clients.client).now(1)
    assert problem is None
    assert set(scores) == set(subnets)


@pytest.mark.parametrize("scores", [{"x": 1}, {"subnet-a": 11}, {"subnet-a": True}, [1]])
def test_invalid_scores_are_rejected(scores: object) -> None:
    with pytest.raises(InvalidRecord, match="scores"):
        state_of({"scores": scores}, NOW)


def test_controller_stores_the_scores_and_asks_once() -> None:
    zones = ["us-east-1a", "us-east-1b"]
    places = json.dumps({"region": "us-east-1", "instance_types": TYPES.split(","), "zones": zones})
    with mock_aws():
        world = World(CHOOSE="availability", PLACES=places)
        world.scores.known = {"subnet-a": 2, "subnet-b": 9}
        world.document()
        world.step(1000.0)
        assert world.state()["scores"] == {"subnet-a": 2, "subnet-b": 9}
        assert world.state()["subnets"] == ["subnet-b"]
        world.autoscaling.groups[1].update(DesiredCapacity=0, Instances=[])
        world.step(1060.0)
        assert world.scores.calls == 1
