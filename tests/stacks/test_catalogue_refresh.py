"""Rebuilding the catalogue from what a cloud answers: the embedded one, and stubbed Savings Plans, which it lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from localcloud.cloud import LocalCloud
from stacks.catalogue_refresh import RefreshError, refresh, write_catalogue
from stacks.instance_types import CATALOGUE_PATH, Catalogue, read_catalogue

REGION = "us-east-1"
TYPES = ("g6.xlarge", "p5.48xlarge", "c7i.2xlarge")
TODAY = date(2027, 1, 2)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    running = LocalCloud(tmp_path_factory.mktemp("cloud"), region=REGION)
    running.start()
    yield running
    running.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A catalogue of three types and two regions."""
    known = read_catalogue(CATALOGUE_PATH)
    small = Catalogue(
        currency=known.currency,
        facts=known.facts,
        region_names=known.region_names,
        types={name: known.types[name] for name in TYPES},
        regions={
            name: type(prices)(prices.sources, {one: row for one, row in prices.types.items() if one in TYPES})
            for name, prices in known.regions.items()
            if name in (REGION, "eu-west-1")
        },
    )
    target = tmp_path / "instance_types.json"
    target.write_bytes(CATALOGUE_PATH.read_bytes())
    write_catalogue(target, small)
    return target


class Clients:
    """Clients of the cloud, with Savings Plans that answer in two pages."""

    def __init__(self, cloud: LocalCloud) -> None:
        self._cloud = cloud
        self.asked: list[tuple[str, str]] = []

    def __call__(self, service: str, region: str) -> Any:
        self.asked.append((service, region))
        if service != "savingsplans":
            return self._cloud.clients.client(service)
        client = boto3.client(service, region_name=region, aws_access_key_id="test", aws_secret_access_key="test")
        stub = Stubber(client)
        stub.add_response("describe_savings_plans_offering_rates", rates("g6.xlarge", "0.5", "page-2"), None)
        asked = dict.fromkeys(("savingsPlanPaymentOptions", "savingsPlanTypes", "products", "filters"), ANY)
        stub.add_response(
            "describe_savings_plans_offering_rates", rates("c7i.2xlarge", "0.25"), {**asked, "nextToken": "page-2"}
        )
        stub.activate()
        return client


def rates(instance_type: str, rate: str, token: str = "") -> dict[str, Any]:
    """Return a page of offering rates: one of a year, and one of three that must be passed over."""

    def one(seconds: int, amount: str) -> dict[str, Any]:
        return {
            "savingsPlanOffering": {"offeringId": "0" * 36, "durationSeconds": seconds, "paymentOption": "No Upfront"},
            "rate": amount, "unit": "Hrs", "productType": "EC2",
            "properties": [{"name": "instanceType", "value": instance_type}],
        }  # fmt: skip

    year = 365 * 24 * 3600
    return {"searchResults": [one(3 * year, "0.01"), one(year, rate)], "nextToken": token}


def test_facts_and_prices_of_one_region_are_rebuilt_and_those_of_others_stay(cloud: LocalCloud, path: Path) -> None:
    before = read_catalogue(path)
    clients = Clients(cloud)
    changes = refresh(path, regions=[REGION], added_types=["g6.4xlarge"], client_of=clients, today=TODAY)
    after = read_catalogue(path)
    prices = after.regions[REGION]
    assert after.regions["eu-west-1"] == before.regions["eu-west-1"]
    assert after.types["p5.48xlarge"] == before.types["p5.48xlarge"], "the embedded cloud tells AWS's own facts"
    assert {"g6.4xlarge", *TYPES} == set(after.types)
    assert {source.date for source in prices.sources.values()} == {TODAY}
    for name in TYPES:
        on_demand, spot = prices.usd_per_hour(name, "on_demand"), prices.usd_per_hour(name, "spot")
        reserved = prices.usd_per_hour(name, "reserved")
        assert on_demand and spot and reserved
        assert spot < on_demand
        assert reserved == pytest.approx(0.63 * on_demand, rel=1e-3)
    assert prices.usd_per_hour("g6.xlarge", "savings_plan") == 0.5
    assert prices.usd_per_hour("c7i.2xlarge", "savings_plan") == 0.25
    assert prices.usd_per_hour("p5.48xlarge", "savings_plan") is None
    assert "types: g6.4xlarge: new" in changes
    assert any(line.startswith(f"{REGION}: g6.xlarge: on_demand: 0.8048 USD/h -> ") for line in changes)
    assert not any(line.startswith("eu-west-1") for line in changes)
    assert {region for service, region in clients.asked if service == "pricing"} == {"us-east-1"}
    # A second look at the same cloud finds nothing new.
    assert refresh(path, regions=[REGION], client_of=Clients(cloud), today=TODAY) == []


def test_a_dry_run_tells_the_same_and_writes_nothing(cloud: LocalCloud, path: Path) -> None:
    before = path.read_bytes()
    planned = refresh(path, regions=[REGION], dry_run=True, client_of=Clients(cloud), today=TODAY)
    assert path.read_bytes() == before
    assert planned == refresh(path, regions=[REGION], client_of=Clients(cloud), today=TODAY)
    assert path.read_bytes() != before
    assert list(path.parent.iterdir()) == [path], "no half-written file stays"


def test_a_call_that_fails_leaves_the_file_as_it_was(cloud: LocalCloud, path: Path) -> None:
    before = path.read_bytes()

    def clients(service: str, region: str) -> Any:
        return cloud.clients.client(service)  # Savings Plans are not emulated: the call is refused

    with pytest.raises(RefreshError, match="nothing is written"):
        refresh(path, regions=[REGION], client_of=clients)
    with pytest.raises(RefreshError, match=r"p9\.huge: not offered in us-east-1"):
        refresh(path, regions=[REGION], added_types=["p9.huge"], client_of=Clients(cloud))
    assert path.read_bytes() == before


def test_writing_what_was_read_changes_no_byte(path: Path) -> None:
    before = path.read_bytes()
    write_catalogue(path, read_catalogue(path))
    assert path.read_bytes() == before
    write_catalogue(path, read_catalogue(CATALOGUE_PATH))
    assert json.loads(path.read_text()) == json.loads(CATALOGUE_PATH.read_text())
