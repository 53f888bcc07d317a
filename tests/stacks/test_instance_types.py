"""The catalogue: complete enough for the deployments that ship, and without slips of the pen."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from stacks.__main__ import main
from stacks.config import load
from stacks.instance_types import InstanceType, Purchase, catalogue

from .conftest import CONFIGS, ROOT

TYPES = list(catalogue().types.values())


@pytest.mark.parametrize("one", TYPES, ids=lambda one: one.name)
def test_facts_are_plausible(one: InstanceType) -> None:
    assert (one.gpus > 0) == (one.gpu is not None) == (one.gpu_memory_gib > 0)
    assert (one.nvme_gb > 0) == (one.nvme_disks > 0)
    assert one.vcpus >= 2
    assert 2 <= one.memory_gib / one.vcpus <= 24
    assert one.network_cards >= 1
    assert one.ebs_mbps >= 500


def prices() -> Iterator[tuple[str, str, Mapping[Purchase, float]]]:
    for region, known in catalogue().regions.items():
        for name, row in known.types.items():
            yield region, name, row


def test_prices_are_plausible_and_of_known_types() -> None:
    for region, name, row in prices():
        assert name in catalogue().types
        assert set(row) <= set(catalogue().regions[region].sources)
        if row:
            assert 0 < row["spot"] < row["on_demand"], (region, name)
        for way in ("savings_plan", "reserved"):
            assert 0 < row.get(way, 0.001) < row.get("on_demand", 1), (region, name)


def test_a_larger_size_costs_more() -> None:
    by_family: dict[tuple[str, str, int], list[tuple[int, float]]] = {}
    for region, name, row in prices():
        one = catalogue().types[name]
        if row:
            by_family.setdefault((region, one.family, one.gpus), []).append((one.vcpus, row["on_demand"]))
    assert len(by_family) > 40
    for sizes in by_family.values():
        ordered = [price for _, price in sorted(sizes)]
        assert ordered == sorted(ordered)


def test_regions_types_and_dates_of_the_catalogue() -> None:
    assert {"us-east-1", "us-east-2", "us-west-2", "eu-west-1"} <= set(catalogue().regions)
    families = {one.family for one in TYPES}
    assert {"g4dn", "g5", "g6", "g6e", "gr6", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200"} <= families
    for known in catalogue().regions.values():
        assert {"on_demand", "spot"} <= set(known.sources)
        for source in known.sources.values():
            assert source.source
            assert source.date >= datetime.date(2025, 1, 1)


@pytest.mark.parametrize(
    ("name", "efa", "cards", "gib_of_a_gpu"),
    [
        ("p4d.24xlarge", 4, 4, 40),
        ("p5.48xlarge", 32, 32, 80),
        ("p5en.48xlarge", 16, 16, 141),
        ("g6e.48xlarge", 4, 4, 44.7),
    ],
)
def test_facts_that_are_published_elsewhere_too(name: str, efa: int, cards: int, gib_of_a_gpu: float) -> None:
    one = catalogue().types[name]
    assert (one.efa_interfaces, one.network_cards) == (efa, cards)
    assert one.gib_of_a_gpu == pytest.approx(gib_of_a_gpu, abs=0.1)


@pytest.mark.parametrize("name", CONFIGS)
def test_shipped_deployments_use_known_types(name: str) -> None:
    config = load(ROOT / "config" / f"{name}.yaml")
    assert set(config.capacity.instance_types) <= set(catalogue().types)


def test_command_prints_what_a_report_reads() -> None:
    command = [sys.executable, "-m", "stacks", "catalogue", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    prices = json.loads(done.stdout)
    assert {"date", "source", "currency", "hourly"} <= set(prices)
    assert {"on_demand", "spot"} <= set(prices["hourly"]["c7i.2xlarge"])


def test_a_region_without_prices_is_answered_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogue", "--region", "sa-east-1"]) == 2
    assert "refresh --regions sa-east-1" in capsys.readouterr().err
