"""The catalogue covers the examples, and its figures are plausible."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from hardware import InstanceType
from stacks.__main__ import main
from stacks.capacity.catalogue import Purchase, catalogue
from stacks.loading import load

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


def test_prices_are_plausible_and_for_known_types() -> None:
    for region, name, row in prices():
        assert name in catalogue().types
        assert set(row) <= set(catalogue().regions[region].sources)
        if row:
            assert 0 < row["spot"] < row["on_demand"], (region, name)
        for way in ("savings_plan", "reserved"):
            assert 0 < row.get(way, 0.001) < row.get("on_demand", 1), (region, name)


def test_larger_size_costs_more() -> None:
    by_family: dict[tuple[str, str, int], list[tuple[int, float]]] = {}
    for region, name, row in prices():
        one = catalogue().types[name]
        if row:
            by_family.setdefault((region, one.family.name, one.gpus), []).append((one.vcpus, row["on_demand"]))
    assert len(by_family) > 40
    for sizes in by_family.values():
        ordered = [price for _, price in sorted(sizes)]
        assert ordered == sorted(ordered)


def test_catalogue_has_regions_families_and_dates() -> None:
    assert {"us-east-1", "us-east-2", "us-west-2", "eu-west-1"} <= set(catalogue().regions)
    families = {one.family.name for one in TYPES}
    assert {"g4dn", "g5", "g6", "g6e", "gr6", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200"} <= families
    for known in catalogue().regions.values():
        assert {"on_demand", "spot"} <= set(known.sources)
        for source in known.sources.values():
            assert source.source
            assert source.date >= datetime.date(2025, 1, 1)


@pytest.mark.parametrize(
    ("name", "efa", "cards", "gib_per_gpu"),
    [
        ("p4d.24xlarge", 4, 4, 40),
        ("p5.48xlarge", 32, 32, 80),
        ("p5en.48xlarge", 16, 16, 141),
        ("g6e.48xlarge", 4, 4, 44.7),
        # https://github.com/aws/karpenter-provider-aws, pkg/fake/zz_generated.describe_instance_types.go (2026-08)
        ("g7.48xlarge", 2, 2, 32),
        ("g7e.24xlarge", 2, 2, 96),
        ("g7e.48xlarge", 4, 4, 96),
    ],
)
def test_facts_match_other_publications(name: str, efa: int, cards: int, gib_per_gpu: float) -> None:
    one = catalogue().types[name]
    assert (one.efa_interfaces, one.network_cards) == (efa, cards)
    assert one.gib_per_gpu == pytest.approx(gib_per_gpu, abs=0.1)


@pytest.mark.parametrize(
    ("name", "usd_per_hour"),
    [
        ("p4de.24xlarge", 27.44705),
        ("p5.4xlarge", 6.88),
        ("p5en.48xlarge", 63.296),
        ("p6-b200.48xlarge", 113.9328),
        ("p6-b300.48xlarge", 142.416),
        ("g7e.48xlarge", 33.14432),
    ],
)
def test_prices_match_another_publication(name: str, usd_per_hour: float) -> None:
    """Source: https://github.com/aws/karpenter-provider-aws, pkg/providers/pricing, us-east-1 on 2026-07-20."""
    assert catalogue().usd_per_hour("us-east-1", name, "on_demand") == usd_per_hour


@pytest.mark.parametrize("name", CONFIGS)
def test_examples_use_known_types(name: str) -> None:
    config = load(ROOT / "config" / f"{name}.yaml")
    assert set(config.capacity.instance_types) <= set(catalogue().types)


def test_command_prints_prices_as_json() -> None:
    command = [sys.executable, "-m", "stacks", "catalogue", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    prices = json.loads(done.stdout)
    assert {"date", "source", "currency", "hourly"} <= set(prices)
    assert {"on_demand", "spot"} <= set(prices["hourly"]["c7i.2xlarge"])


def test_command_rejects_a_region_without_prices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogue", "--region", "sa-east-1"]) == 2
    assert "refresh --regions sa-east-1" in capsys.readouterr().err
