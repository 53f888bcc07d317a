"""The catalogue: complete enough for the deployments that ship, and without slips of the pen."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys

import pytest

from stacks.config import load
from stacks.instance_types import InstanceType, catalogue

from .conftest import CONFIGS, ROOT

TYPES = list(catalogue().types.values())


@pytest.mark.parametrize("one", TYPES, ids=lambda one: one.name)
def test_facts_are_plausible(one: InstanceType) -> None:
    assert 0 < one.spot_usd < one.on_demand_usd
    assert (one.gpus > 0) == (one.gpu is not None) == (one.gpu_memory_gib > 0)
    assert one.vcpus >= 2
    assert 2 <= one.memory_gib / one.vcpus <= 16


def test_a_larger_size_costs_more() -> None:
    by_family: dict[str, list[InstanceType]] = {}
    for one in TYPES:
        by_family.setdefault(one.name.split(".")[0], []).append(one)
    for family in by_family.values():
        family.sort(key=lambda one: one.vcpus)
        prices = [one.on_demand_usd for one in family]
        assert prices == sorted(prices)


def test_prices_are_dated_and_sourced() -> None:
    assert datetime.date.fromisoformat(catalogue().date)
    assert "https://" in catalogue().source


@pytest.mark.parametrize("name", CONFIGS)
def test_shipped_deployments_use_known_types(name: str) -> None:
    config = load(ROOT / "config" / f"{name}.yaml")
    assert set(config.capacity.instance_types) <= set(catalogue().types)


def test_command_prints_what_a_report_reads() -> None:
    command = [sys.executable, "-m", "stacks", "catalogue", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    prices = json.loads(done.stdout)
    assert {"date", "source", "currency", "hourly"} <= set(prices)
    assert set(prices["hourly"]["c7i.2xlarge"]) == {"on_demand", "spot"}
