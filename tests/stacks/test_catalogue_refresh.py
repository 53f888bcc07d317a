"""Refresh of the catalogue, from the embedded cloud and from stubbed Savings Plans, which it does not emulate."""

from __future__ import annotations

import copy
import functools
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from localcloud.cloud import LocalCloud
from stacks.capacity import refresh as module
from stacks.capacity.catalogue import read_catalogue
from stacks.capacity.refresh import Files, RefreshError, refresh, write_catalogue
from stacks.capacity.spot_history import AdvisorError, Interruptions, PriceRange, price_ranges, read_advisor

REGION = "us-east-1"
ADVISOR = {
    "ranges": [
        {"index": 0, "label": "<5%", "dots": 0, "max": 5},
        {"index": 1, "label": "5-10%", "dots": 1, "max": 11},
        {"index": 2, "label": "10-15%", "dots": 2, "max": 16},
    ],
    "spot_advisor": {
        "us-east-1": {
            "Linux": {"g6.xlarge": {"s": 60, "r": 2}, "c7i.2xlarge": {"s": 50, "r": 0}, "m5.large": {"s": 1, "r": 1}}
        }
    },
}
"""The structure of the Spot Instance Advisor's file, as its readers on GitHub decode it
(nint8835/interruption-spotter, pkg/spotdata/types.go)."""
TYPES = ("g6.xlarge", "p5.48xlarge", "c7i.2xlarge")
TODAY = date(2027, 1, 2)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    running = LocalCloud(tmp_path_factory.mktemp("cloud"), region=REGION)
    running.start()
    yield running
    running.close()


@pytest.fixture(autouse=True)
def advisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Serve the Spot Instance Advisor's file on this machine. Return the document, which tests may change."""
    document = copy.deepcopy(ADVISOR)

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, format: str, *arguments: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    local = functools.partial(module.refresh, advisor_url=url)
    monkeypatch.setattr("tests.stacks.test_catalogue_refresh.refresh", local)
    yield document
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A catalogue of three types and two regions."""
    known = read_catalogue()
    small = replace(
        known,
        hardware=replace(known.hardware, types={name: known.types[name] for name in TYPES}),
        regions={
            name: type(prices)(prices.sources, {one: row for one, row in prices.types.items() if one in TYPES})
            for name, prices in known.regions.items()
            if name in (REGION, "eu-west-1")
        },
    )
    copied = Files(tmp_path / "hardware.json", tmp_path / "prices.json")
    copied.hardware.write_bytes(Files().hardware.read_bytes())
    copied.prices.write_bytes(Files().prices.read_bytes())
    write_catalogue(copied, small)
    return copied


class Clients:
    """Clients of the cloud, with Savings Plans that return two pages."""

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
    """Return a page of offering rates: one for a year, and one for three years, which must be ignored."""

    def one(seconds: int, amount: str) -> dict[str, Any]:
        return {
            "savingsPlanOffering": {"offeringId": "0" * 36, "durationSeconds": seconds, "paymentOption": "No Upfront"},
            "rate": amount, "unit": "Hrs", "productType": "EC2",
            "properties": [{"name": "instanceType", "value": instance_type}],
        }  # fmt: skip

    year = 365 * 24 * 3600
    return {"searchResults": [one(3 * year, "0.01"), one(year, rate)], "nextToken": token}


def contents(files: Files) -> tuple[bytes, bytes]:
    return files.hardware.read_bytes(), files.prices.read_bytes()


def test_refresh_rebuilds_one_region_and_keeps_the_others(cloud: LocalCloud, files: Files) -> None:
    before = files.read()
    clients = Clients(cloud)
    changes = refresh(files, regions=[REGION], added_types=["g6.4xlarge"], client_of=clients, today=TODAY)
    after = files.read()
    prices = after.regions[REGION]
    assert after.regions["eu-west-1"] == before.regions["eu-west-1"]
    assert after.types["p5.48xlarge"] == before.types["p5.48xlarge"], "the embedded cloud has AWS's facts"
    assert after.types["p5.48xlarge"].network_gbps == 3200, "a fact that no API returns is kept"
    assert after.hardware.facts.date == TODAY
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
    # A second refresh from the same cloud changes nothing.
    assert refresh(files, regions=[REGION], client_of=Clients(cloud), today=TODAY) == []


def test_new_prices_leave_the_bundled_facts_unchanged(cloud: LocalCloud, files: Files) -> None:
    facts, prices = contents(files)
    assert refresh(files, regions=[REGION], client_of=Clients(cloud), today=TODAY)
    assert files.hardware.read_bytes() == facts
    assert files.prices.read_bytes() != prices


def test_dry_run_returns_the_same_changes_and_writes_nothing(cloud: LocalCloud, files: Files) -> None:
    before = contents(files)
    planned = refresh(files, regions=[REGION], dry_run=True, client_of=Clients(cloud), today=TODAY)
    assert contents(files) == before
    assert planned == refresh(files, regions=[REGION], client_of=Clients(cloud), today=TODAY)
    assert contents(files) != before
    assert sorted(files.prices.parent.iterdir()) == [files.hardware, files.prices], "no temporary file is left"


def test_failed_call_leaves_the_files_unchanged(cloud: LocalCloud, files: Files) -> None:
    before = contents(files)

    def clients(service: str, region: str) -> Any:
        return cloud.clients.client(service)  # Savings Plans are not emulated, so this call fails

    with pytest.raises(RefreshError, match="nothing was written"):
        refresh(files, regions=[REGION], client_of=clients)
    with pytest.raises(RefreshError, match=r"p9\.huge: not offered in us-east-1"):
        refresh(files, regions=[REGION], added_types=["p9.huge"], client_of=Clients(cloud))
    assert contents(files) == before


def test_type_of_an_unknown_family_is_reported(cloud: LocalCloud, files: Files) -> None:
    changes = refresh(files, regions=[REGION], added_types=["t3.micro"], client_of=Clients(cloud), today=TODAY)
    assert "families: t3: not in hardware.json: add its quotas and NVLinks" in changes
    assert files.read().types["t3.micro"].quota_code(spot=True) is None


def test_write_after_read_changes_no_byte(files: Files) -> None:
    before = contents(files)
    write_catalogue(files, files.read())
    assert contents(files) == before
    write_catalogue(files, read_catalogue())
    assert contents(files) == contents(Files())


def test_spot_prices_and_interruptions_are_read_dated_and_kept(
    cloud: LocalCloud, files: Files, advisor: dict[str, Any]
) -> None:
    assert files.read().regions[REGION].interruptions.source is None  # not part of the catalogue yet
    changes = refresh(files, regions=[REGION], client_of=Clients(cloud), today=TODAY)
    prices = files.read().regions[REGION]
    assert prices.interruptions.types == {"g6.xlarge": Interruptions(11, 16), "c7i.2xlarge": Interruptions(0, 5)}
    assert prices.interruptions.source is not None and prices.interruptions.source.date == TODAY
    assert set(prices.spot_prices.types) == set(TYPES)
    known = prices.spot_prices.types["g6.xlarge"]
    assert 0 < known.low <= known.mean <= known.high
    assert "us-east-1: g6.xlarge: interrupted per month: 11% to 16%" in changes
    advisor.clear()  # an unknown structure
    refresh(files, regions=[REGION], client_of=Clients(cloud), today=TODAY)
    assert files.read().regions[REGION].interruptions == prices.interruptions


def test_price_range_is_weighted_by_time() -> None:
    end = datetime(2027, 1, 2, tzinfo=UTC)

    def change(days_ago: float, usd: str) -> dict[str, Any]:
        when = end - timedelta(days=days_ago)
        return {"InstanceType": "g6.xlarge", "AvailabilityZone": "us-east-1a", "Timestamp": when, "SpotPrice": usd}

    class Ec2:
        def get_paginator(self, name: str) -> Ec2:
            return self

        def paginate(self, **asked: Any) -> list[dict[str, Any]]:
            assert asked["StartTime"] == end - timedelta(days=90)
            # 0.2 since before the period, for 54 days; then 0.4 for 28 days and 0.9 for 8 days.
            return [{"SpotPriceHistory": [change(8, "0.9"), change(36, "0.4"), change(100, "0.2")]}]

    found = price_ranges(Ec2(), ["g6.xlarge"], end)
    assert found == {"g6.xlarge": PriceRange(0.2, round((0.2 * 54 + 0.4 * 28 + 0.9 * 8) / 90, 4), 0.4)}


def test_other_schemes_are_refused() -> None:
    with pytest.raises(AdvisorError, match="not an https URL"):
        read_advisor("file:///etc/passwd")
