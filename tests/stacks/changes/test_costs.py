"""What a deployment costs, computed from its templates, and the quotas that it counts against."""

from __future__ import annotations

import pytest

from stacks.changes.assembly import read_assembly
from stacks.changes.costs import Costs, costs, quotas
from stacks.changes.review import review
from stacks.changes.standing_costs import volume_usd_per_month
from stacks.changes.wording import sections
from stacks.instance_types import catalogue
from tests.stacks.conftest import Synthesis

HOURS_A_MONTH = 730


def of(name: str, synthesis: Synthesis) -> Costs:
    found = costs(read_assembly(synthesis.of(name).directory))
    assert found is not None
    return found


def test_an_hour_is_between_the_cheapest_and_the_dearest_type(synthesis: Synthesis) -> None:
    found = of("single-gpu", synthesis)
    prices = [catalogue().usd_per_hour("us-east-1", name, "spot") for name in ("g6.xlarge", "g5.2xlarge")]
    volume = volume_usd_per_month({"VolumeSize": 100, "VolumeType": "gp3"}) / HOURS_A_MONTH
    assert found.training_per_hour is not None
    assert found.training_per_hour.least == pytest.approx((prices[0] or 0) + volume)
    assert found.training_per_hour.most >= (prices[1] or 0)
    assert found.per_run(10) == found.training_per_hour.times(10)
    assert found.per_month == found.training_per_hour.times(HOURS_A_MONTH).plus(found.standing_per_month)


def test_what_stands_is_told_by_what_it_is_for(synthesis: Synthesis) -> None:
    lustre = of("lustre", synthesis)
    assert lustre.standing["Lustre"] == pytest.approx(2400 * 0.21)
    assert of("minimal", synthesis).standing["interface endpoints"] == pytest.approx(4 * 3 * 0.01 * HOURS_A_MONTH)
    assert sum(lustre.standing.values()) == pytest.approx(lustre.standing_per_month)


def test_what_is_not_known_is_said(synthesis: Synthesis) -> None:
    block = of("capacity-block", synthesis)
    assert block.training_per_hour is None
    assert block.unknown == "a capacity block is paid in advance"


@pytest.mark.parametrize(
    ("volume", "usd"),
    [
        ({"Size": 100, "VolumeType": "gp3"}, 8.0),
        ({"Size": 100, "VolumeType": "gp3", "Iops": 4000, "Throughput": 225}, 8.0 + 5.0 + 4.0),
        ({"Size": 100, "VolumeType": "io2", "Iops": 33_000}, 12.5 + 32_000 * 0.065 + 1_000 * 0.0455),
    ],
)
def test_a_volume(volume: dict[str, object], usd: float) -> None:
    assert volume_usd_per_month(volume) == pytest.approx(usd)


def test_quotas_are_by_market_and_by_the_largest_type(synthesis: Synthesis) -> None:
    found = quotas(read_assembly(synthesis.of("spot-fleet").directory))
    assert [(one.code, one.market, one.vcpus) for one in found] == [
        ("L-DB2E81BA", "on demand", 96),
        ("L-3819A6DF", "spot", 96),
    ]


def test_a_change_is_told_with_both_figures_and_the_day_of_the_prices(synthesis: Synthesis) -> None:
    before = synthesis.of("minimal").directory
    after = synthesis.variant("costs", {"capacity.nodes": 2, "network.nat": True}, base="minimal").directory
    found = review(read_assembly(before), read_assembly(after), hours=(10.0, 10.0))
    told = {one.title: [line.text for line in one.lines] for one in sections(found)}
    assert "fleet: 1 x g6.xlarge, spot -> 2 x g6.xlarge, spot" in told["Costs"]
    assert "NAT gateway: 0.00 -> 32.85 USD a month" in told["Costs"]
    assert any(line.startswith("the planned run: 3.73 USD -> 7.46 USD") for line in told["Costs"])
    assert any("spot of 2025-" in line for line in told["Costs"])
    assert told["Quotas"] == ["L-3819A6DF (spot): 4 -> 8 vCPUs; `check --aws` asks whether there are"]
